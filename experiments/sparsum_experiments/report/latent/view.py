"""What all views have in common."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Self

import pydantic
import torch
from torch import Tensor

from sparsum_experiments.data import Images
from sparsum_experiments.experiment import AbstractExperiment

Text = Annotated[str, pydantic.Field(max_length=300)]
Probability = Annotated[float, pydantic.Field(ge=0, le=1)]

_CLASSES = {
    "fashion-mnist": ["T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"],
}


def _decoded(value: Any, info: pydantic.ValidationInfo) -> Any:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{info.field_name} is not base64") from None


def base64_text(content: bytes) -> str:
    """Bytes as ASCII."""
    return base64.b64encode(content).decode("ascii")


#: Bytes that are base64 in JSON. pydantic's own type skips signs that are not base64.
Raw = Annotated[bytes, pydantic.BeforeValidator(_decoded), pydantic.PlainSerializer(base64_text, when_used="json")]


class Part(pydantic.BaseModel):
    """Numbers, bytes and texts that anybody may have written: nothing is converted, missing or added."""

    model_config = pydantic.ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True
    )


class AbstractView(Part, ABC):
    """What one latent variable learned, which needs neither the model nor the data."""

    #: Which template shows it, and its heading.
    kind: ClassVar[str]
    title: ClassVar[str]

    @classmethod
    @abstractmethod
    def of(cls, experiment: AbstractExperiment, generator: torch.Generator) -> Self:
        """The view of a trained model; gradients are off, and all noise comes from the generator."""


class ImageExample(Part):
    """A test image: what is on it, and a byte for each pixel."""

    label: Text
    image: Raw


class AbstractImagesView(AbstractView):
    """A view with pictures, which are not larger than this when they are read from a file."""

    height: Annotated[int, pydantic.Field(ge=1, le=256)]
    width: Annotated[int, pydantic.Field(ge=1, le=256)]

    @property
    def n_pixels(self) -> int:
        """Of each picture."""
        return self.height * self.width


def check_size(content: bytes, size: int, name: str) -> None:
    """Raise a ValueError unless there are so many bytes."""
    if len(content) != size:
        raise ValueError(f"{name} must be {size} bytes in base64, got {len(content)}")


def grey_bytes(parts: Tensor) -> bytes:
    """Numbers from 0 to 1 as grey levels of one byte each."""
    return (parts.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy().tobytes()


def png_address(grey: bytes, height: int, width: int) -> str:
    """A grey picture as a data URL."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("L", (width, height), grey).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64_text(buffer.getvalue())}"


def one_of_each_class(images: Images, n: int) -> list[int]:
    """The indices of n test images: the first of each class, then the first of all others."""
    y = images.test.y.tolist()
    first = list({label: y.index(label) for label in sorted(set(y))}.values())
    others = [i for i in range(len(y)) if i not in set(first)]
    return (first + others)[:n]


def class_names(images: Images, chosen: list[int]) -> list[str]:
    """What is on test images, for people."""
    known = _CLASSES.get(images.name)
    return [known[label] if known else f"digit {label}" for label in images.test.y[chosen].tolist()]
