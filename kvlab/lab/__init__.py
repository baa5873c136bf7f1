"""What a notebook cell calls: the environment line, predictions, sliders, progress. The only place with IPython.

The rest of kvlab works without this package; nothing imports it. `make notebooks` runs `kvlab.lab.build`.
"""

from kvlab.checks import require

require("IPython", "ipywidgets", "plotly", extra="lab")

from kvlab.lab.explore import explore, slider
from kvlab.lab.prediction import Prediction, predict
from kvlab.lab.progress import progress
from kvlab.lab.sections import often_said, section
from kvlab.lab.session import Session, setup
from kvlab.lab.watch import watch

__all__ = [
    "Prediction",
    "Session",
    "explore",
    "often_said",
    "predict",
    "progress",
    "section",
    "setup",
    "slider",
    "watch",
]
