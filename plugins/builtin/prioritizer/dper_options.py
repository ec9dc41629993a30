"""Options of the prioritizer ``dper``. Read by the registration and by ``Dper``."""

from __future__ import annotations

from pydantic import Field

from distrl.plugins.spec import Options


class DperOptions(Options):
    """Weights of the priority's three terms; the defaults are those of the method's published code."""

    td_weight: float = Field(default=50.0, ge=0, description="of the mean absolute TD error")
    ratio_weight: float = Field(default=1.0, ge=0, description="of the mean clipped importance ratio")
    entropy_weight: float = Field(default=0.01, ge=0, description="of the mean entropy")
    gamma: float = Field(default=1.0, gt=0, le=1, description="discount of TD errors from recorded values")
