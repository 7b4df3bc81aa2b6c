"""The one root of all errors. A leaf: every room may import it, it imports nothing."""


class KeepError(Exception):
    """Something the user can act on; the message names the value and the remedy."""


class ConfigError(KeepError, ValueError):
    """A setting that cannot work."""


class StaleError(KeepError, RuntimeError):
    """What was asked for builds on something that is no longer so."""


class DataError(KeepError, ValueError):
    """Input files that are missing, truncated or not what they claim to be."""


class CorruptError(DataError):
    """A stored file whose bytes are no longer those that were written."""


class SkillError(KeepError, ValueError):
    """A skill the world does not know."""


class EpisodeError(KeepError, RuntimeError):
    """A simulator that does not get through this episode, where the next one may go well."""


class ModelError(KeepError, RuntimeError):
    """A model that cannot be loaded or driven."""


class StorageError(KeepError, OSError):
    """A place where nothing can be written: it is read-only, forbidden or broken."""


class CapacityError(KeepError, MemoryError):
    """Something does not fit; the message says by how much."""
