"""VTA: plans as streams of its instructions, and their binary form."""

from amos.codegen.vta.encoding import Encoding
from amos.codegen.vta.instructions import Alu, Finish, Gemm
from amos.codegen.vta.program import check, program

__all__ = ["Alu", "Encoding", "Finish", "Gemm", "check", "program"]
