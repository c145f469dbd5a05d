"""Numbers and pictures as text that can stand in a page or a JSON file."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import torch
from torch import Tensor


def base64_text(content: bytes) -> str:
    """Bytes as ASCII."""
    return base64.b64encode(content).decode("ascii")


def halves(tensors: Iterable[Tensor]) -> bytes:
    """Tensors one after the other, in half precision with the lower byte first.

    Raises:
        ValueError: if a number does not fit.
    """
    flat = torch.cat([tensor.detach().reshape(-1).cpu() for tensor in tensors]).half()
    if not flat.isfinite().all():
        raise ValueError("a weight is not finite in half precision")
    return flat.numpy().astype("<f2").tobytes()


def grey_bytes(
    parts: Tensor,  # numbers from 0 to 1
) -> bytes:
    """Grey levels of one byte each."""
    return (parts.clamp(0, 1) * 255).round().to(torch.uint8).cpu().numpy().tobytes()


def png_address(grey: bytes, height: int, width: int) -> str:
    """A grey picture as an address that holds it."""
    # Pillow comes with the extra that the experiments need; the rest of the report does without.
    from PIL import Image

    buffer = io.BytesIO()
    Image.frombytes("L", (width, height), grey).save(buffer, "PNG", optimize=True)
    return f"data:image/png;base64,{base64_text(buffer.getvalue())}"
