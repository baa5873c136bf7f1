"""What a policy can learn about the request behind an `insert` or a `touch`.

Both facts travel in `ReqContext.kv_transfer_params`, the dictionary that vLLM hands through from the client's request
body to its KV connector:

* `session_id`: set by whoever sends the request; kvlab's workload sets it to the conversation.
* `block_positions`: where each of the request's blocks starts in the prompt, in tokens. kvlab's connector adds it; vLLM
  has nothing like it, so there a policy sees no position.
"""

from kvlab.base import OffloadKey, ReqContext

SESSION_ID = "session_id"
BLOCK_POSITIONS = "block_positions"


def session_of(req_context: ReqContext | None) -> str | None:
    """The session of the request, None if there is no request or it names none."""
    params = req_context.kv_transfer_params if req_context is not None else None
    session = (params or {}).get(SESSION_ID)
    return None if session is None else str(session)


def position_of(key: OffloadKey, req_context: ReqContext | None) -> int | None:
    """First token of the block in the request's prompt, None if unknown. The same for every request: a key stands for
    a block and everything before it."""
    params = req_context.kv_transfer_params if req_context is not None else None
    positions = (params or {}).get(BLOCK_POSITIONS)
    return None if positions is None else positions.get(key)
