class SlotsStatus:
    """The record of one block: two whole numbers in two fixed places, and no dictionary.

    `block_id` is the slot it is made with. `ref_cnt` starts at -1: being written. `is_ready`, a property, is True
    when the block can be read, that is when `ref_cnt` is 0 or more. Nothing else can be set on it.
    """

    __slots__ = ("block_id", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        """The block in slot `block_id`, being written."""
        self.block_id = block_id
        self.ref_cnt = -1

    @property
    def is_ready(self) -> bool:
        """Whether the block can be read."""
        return self.ref_cnt >= 0
