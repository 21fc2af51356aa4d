"""What every section of the settings is made of: frozen, checked, closed, in ranges that have a name."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Frozen, checked, closed."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
