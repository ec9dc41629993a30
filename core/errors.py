"""Every error that distrl raises on purpose, with a stable code. Raised everywhere, imported by all.

Two roots. ``DistrlError`` is something that went wrong: ``code`` is stable, unique and tested,
``retriable`` is all that a retry loop may read, ``exit_code`` is what a command line ends with
(2 usage or configuration, 3 a service or package missing, 4 the run failed).
``ControlFlow`` is not a failure: a handler uses it to steer the runtime.
Vendor exceptions are translated into these in ``connectors/`` and nowhere else.
"""

from __future__ import annotations

from typing import ClassVar


class DistrlError(Exception):
    """Root of all failures. The message says what is wrong and what to do about it."""

    code: ClassVar[str] = "DISTRL-000"
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 4

    def __str__(self) -> str:
        return f"[{self.code}] {super().__str__()}"

    @property
    def message(self) -> str:
        """The text without its code."""
        return super().__str__()


# --- configuration, plugins, packages -----------------------------------------------------------


class ConfigError(DistrlError):
    """A configuration file, override or option is unknown, malformed or contradictory."""

    code = "DISTRL-100"
    exit_code = 2


class PluginError(DistrlError):
    """A plugin does not import, does not fit its hook, or raised while it registered."""

    code = "DISTRL-110"
    exit_code = 2


class UnknownPluginError(PluginError):
    """No plugin of that name is registered for the role."""

    code = "DISTRL-111"


class MissingPackageError(DistrlError):
    """An optional package is needed; the message names the extra that brings it."""

    code = "DISTRL-120"
    exit_code = 3


class MissingServiceError(DistrlError):
    """A program or server is needed and is not there; the message says how to get it."""

    code = "DISTRL-121"
    exit_code = 3


# --- events and codec ---------------------------------------------------------------------------


class CodecError(DistrlError):
    """Bytes are not an event that this version can read, or an event does not fit its schema."""

    code = "DISTRL-200"


class UnknownSchemaError(CodecError):
    """The schema id in a frame is known neither to the committed files nor to the registry."""

    code = "DISTRL-201"


class InvalidEventError(CodecError):
    """The event decodes but breaks a rule: a field out of range, another run's event."""

    code = "DISTRL-202"


class SplitViolationError(InvalidEventError):
    """A trajectory of the test split was offered for training."""

    code = "DISTRL-203"


# --- schema registry ----------------------------------------------------------------------------


class RegistryError(DistrlError):
    """The schema registry refused or failed an operation for good."""

    code = "DISTRL-210"
    exit_code = 3


class RegistryUnavailableError(RegistryError):
    """The schema registry cannot be reached now."""

    code = "DISTRL-211"
    retriable = True


class IncompatibleSchemaError(RegistryError):
    """A schema cannot be read by, or cannot read, what another version of it has written."""

    code = "DISTRL-212"
    exit_code = 2


class RegistryCredentialsError(RegistryError):
    """The schema registry refused the credentials, or does not let them do this."""

    code = "DISTRL-213"


# --- bus ----------------------------------------------------------------------------------------


class BusError(DistrlError):
    """The log refused or failed an operation for good."""

    code = "DISTRL-300"


class BusUnavailableError(BusError):
    """The broker or log file cannot be reached now."""

    code = "DISTRL-301"
    retriable = True
    exit_code = 3


class BusBackpressureError(BusError):
    """Too much is in flight and nothing was acknowledged within the send's time limit."""

    code = "DISTRL-302"
    retriable = True


class DeliveryError(BusError):
    """A record was not acknowledged in time or was rejected; whether it was written is unknown."""

    code = "DISTRL-303"
    retriable = True


class FencedError(BusError):
    """Another process holds the fence, or goes by this member's name, now: this one was replaced and must stop."""

    code = "DISTRL-304"


class UnknownTopicError(BusError):
    """The topic does not exist. Topics are made by ``distrl topics apply``, never by use."""

    code = "DISTRL-305"


class RecordTooLargeError(BusError):
    """The record exceeds the topic's limit: a larger artefact belongs in the store."""

    code = "DISTRL-306"


class TopicMismatchError(BusError):
    """A topic exists with other partitions or settings than declared."""

    code = "DISTRL-307"
    exit_code = 2


class BusCredentialsError(BusError):
    """The broker refused the login, or what it says of itself cannot be trusted (TLS)."""

    code = "DISTRL-308"
    exit_code = 3


class BusAuthorizationError(BusError):
    """The broker knows who asks and does not allow it; the message names what was asked."""

    code = "DISTRL-309"
    exit_code = 3


class GroupMismatchError(BusError):
    """The live members of a consumer group share its partitions in another way than this one."""

    code = "DISTRL-310"
    exit_code = 2


# --- store --------------------------------------------------------------------------------------


class StoreError(DistrlError):
    """The object store refused or failed an operation for good."""

    code = "DISTRL-400"


class StoreUnavailableError(StoreError):
    """The object store cannot be reached now."""

    code = "DISTRL-401"
    retriable = True
    exit_code = 3


class BlobNotFoundError(StoreError):
    """No object of that key."""

    code = "DISTRL-402"


class BlobCorruptError(StoreError):
    """The object's size or SHA-256 is not the one that its reference promises."""

    code = "DISTRL-403"


class BlobExistsError(StoreError):
    """A conditional put found that the key exists."""

    code = "DISTRL-404"


class InvalidKeyError(StoreError):
    """A key is empty, absolute, or would leave its bucket or folder."""

    code = "DISTRL-405"


class StoreFullError(StoreError):
    """No space is left where the store, log or outbox writes."""

    code = "DISTRL-406"
    retriable = True
    exit_code = 3


class StoreCredentialsError(StoreError):
    """The object store refused the credentials, or what it says of itself cannot be trusted (TLS)."""

    code = "DISTRL-407"
    exit_code = 3


# --- devices and episodes -----------------------------------------------------------------------


class DeviceError(DistrlError):
    """A device failed; the episode in hand ends as aborted and never trains a policy."""

    code = "DISTRL-500"
    retriable = True


class DeviceTimeoutError(DeviceError):
    """A device did not answer within the call's time limit."""

    code = "DISTRL-501"


class DeviceLostError(DeviceError):
    """The device's session is gone; it needs a new one."""

    code = "DISTRL-502"


class TaskError(DistrlError):
    """A task source cannot give the task that was asked for."""

    code = "DISTRL-510"
    exit_code = 2


# --- runs ---------------------------------------------------------------------------------------


class UnknownRunError(DistrlError):
    """Neither the log nor the store knows a run of that name."""

    code = "DISTRL-520"
    exit_code = 2


class RunInUseError(DistrlError):
    """Nodes of the run are alive: what is asked would take the ground from under them."""

    code = "DISTRL-521"
    exit_code = 2


class UnknownEpisodeError(DistrlError):
    """Nothing on the log of the run is about an episode or trace of that id."""

    code = "DISTRL-522"
    exit_code = 2


# --- learning -----------------------------------------------------------------------------------


class PolicyError(DistrlError):
    """A policy cannot act or learn on what it was given."""

    code = "DISTRL-600"


class WeightsError(PolicyError):
    """Weights do not fit the policy: other names, shapes or architecture."""

    code = "DISTRL-601"


class CheckpointError(DistrlError):
    """A checkpoint is missing a part or belongs to another run."""

    code = "DISTRL-610"


# --- runtime ------------------------------------------------------------------------------------


class StarvedError(DistrlError):
    """A role waited longer than its bound; the message names the side that is missing."""

    code = "DISTRL-700"


class RunFailedError(DistrlError):
    """A supervised run could not go on: a role kept dying, or a drain did not end."""

    code = "DISTRL-701"


# --- what may be asked of any error ---------------------------------------------------------------


def is_retriable(error: BaseException) -> bool:
    """Whether a retry may help: all that any retry loop of the runtime looks at."""
    return isinstance(error, DistrlError) and error.retriable


def is_environmental(error: BaseException) -> bool:
    """Whether an error is about this machine or its services (a missing package, refused credentials), not about a record:
    every record would fail alike, so none is to blame."""
    return isinstance(error, DistrlError) and (error.retriable or error.exit_code in (2, 3))


# --- control flow -------------------------------------------------------------------------------


class ControlFlow(Exception):
    """Root of signals that steer the runtime; none of them is a failure."""


class SkipRecord(ControlFlow):
    """Acknowledge the record without effect: it was seen before, or is not for this reader."""


class StopNode(ControlFlow):
    """Stop this node in an orderly way."""


class Backpressure(ControlFlow):
    """Do not deliver more for now; the record will be offered again."""
