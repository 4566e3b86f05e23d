"""VTA: plans as streams of its instructions, and their binary form."""

from amos.streams.vta.encoding import Encoding
from amos.streams.vta.instructions import Alu, Finish, Gemm
from amos.streams.vta.program import check, program

__all__ = ["Alu", "Encoding", "Finish", "Gemm", "check", "program"]
