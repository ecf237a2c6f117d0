"""Which model a request means, and which models there are."""

from collections.abc import Iterable

from ...schemas.errors import InvalidRequest, RegistrationRefused
from .models import Model
from .tables import Tables

#: models of which anything is known
MAX_MODELS = 1024
#: models that requests may name before any instance has registered
MAX_EXPECTED = 16


def model_for(t: Tables, named: str) -> Model:
    """Return the model that a request means. Raises `InvalidRequest` where there is none such, or more than one.

    Any name will do while no instance has registered, or instances may still come that knew a broker before this one.
    """
    name = named or t.settings.default_model
    model = t.models.get(name)
    if model is not None:
        return model
    known = [model.name for model in t.models.values() if model.known]
    if not name and len(known) == 1:
        return t.models[known[0]]
    if (known and (t.settled or not name)) or len(t.models) >= MAX_EXPECTED:
        raise InvalidRequest("model", name, f"one of {', '.join(sorted(known))}")
    return _add(t, name)


def check_models(t: Tables, names: Iterable[str]) -> None:
    """Raise where an instance names more models than there is room for."""
    new = [name for name in names if name not in t.models]
    if len(t.models) + len(new) > MAX_MODELS:
        _forget_unused(t)
    if len(t.models) + len(new) > MAX_MODELS:
        raise RegistrationRefused(f"it serves the models {new}, and there are {len(t.models)} already")


def serve(t: Tables, name: str) -> Model:
    """Return the model `name` that an instance serves. The first one there is takes the requests that named none."""
    model = t.models.get(name)
    if model is None and (nameless := t.models.pop("", None)) is not None:
        nameless.rename(name)
        model = t.models[name] = nameless
    model = model or _add(t, name)
    model.known = True
    return model


def _add(t: Tables, name: str) -> Model:
    model = t.models[name] = Model(t.settings, name)
    return model


def _forget_unused(t: Tables) -> None:
    used = {request.model.name for request in t.requests.values()}
    for name in [name for name, model in t.models.items() if not model.served and name not in used]:
        del t.models[name]
