"""What an honest-but-curious server can reconstruct from one upload."""

from fedadmm.study.auditing.attacks import ATTACKS as ATTACKS
from fedadmm.study.auditing.audit import Audit as Audit
from fedadmm.study.auditing.audit import audit as audit
from fedadmm.study.auditing.audit import document as document
