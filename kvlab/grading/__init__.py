"""Grade handed-in notebooks: each exercise cell in a process of its own, with limits; a row for each, never a crash.

Notes:
* Only the tagged cells run (`metadata.kvlab.exercise`), not the notebook. A cell must stand alone, as its stub does.
* The limits keep accidents and mischief away from the grader: endless loops, huge lists, exits, processes, sockets,
  writes outside a scratch folder. They are no prison: code that attacks the interpreter from inside can still forge
  a pass. Do not grade what you would not run.
"""

from kvlab.grading.handins import HandIn, collect
from kvlab.grading.sandbox import Limits, Row, grade
from kvlab.grading.table import write_csv, write_html

__all__ = ["HandIn", "Limits", "Row", "collect", "grade", "write_csv", "write_html"]
