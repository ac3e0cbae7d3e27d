"""Errors of the agents.

AgentError
 +- RequestError    a request that cannot be served as it is; becomes an HTTP answer
 +- WorkflowError   a pipeline that cannot go on
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of the agents' errors."""


class RequestError(AgentError):
    """A request that is refused.

    Args:
        status: the HTTP status.
        message: what is wrong and what is allowed.
        param: path of the field in the request's body, if one is to blame.
    """

    def __init__(self, status: int, message: str, param: str | None) -> None:
        super().__init__(status, message, param)
        self.status = status
        self.message = message
        self.param = param


class WorkflowError(AgentError):
    """A pipeline that cannot go on: an agent refused a step or could not be reached."""
