"""IAM as its documentation has it: may a request pass, by which statement, or why not.

A part: identity policies, session policies, trust policies, one bucket's policy; no organisations, no boundaries, one account.
What it does not know (an operator, an element) is an error, never a quiet no.
"""
