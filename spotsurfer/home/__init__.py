"""The working folder of the submit host: it goes to the job's machine, and what the job made of it comes home.

`bring` sends a folder before the submission, `expect` notes submitted jobs and starts the courier, `deliver` brings home what
has ended, `at_home` says whether anything of a job is still awaited, `awaited` of which ones. docs/home.md is for users.
"""

from spotsurfer.home.bring import bring
from spotsurfer.home.courier import expect
from spotsurfer.home.deliver import at_home, awaited, deliver

__all__ = ["at_home", "awaited", "bring", "deliver", "expect"]
