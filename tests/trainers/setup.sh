#!/bin/bash
# One virtual environment a trainer, with its own packages: they ask for versions that exclude each other.
#   tests/trainers/setup.sh FOLDER NAME…
# torch: the CPU's build is enough (set PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where you have one); from the Python
# package index alone, pip takes CUDA's, some GB.
set -euo pipefail
folder=$1
shift
torch="torch==2.13.0"
bare="httpx pydantic typer rich PyYAML"

install() { "$folder/$1.new/bin/pip" install -q --disable-pip-version-check "${@:2}"; }

for name in "$@"; do
	if [ -x "$folder/$name/bin/python" ]; then continue; fi
	echo "setup: installing the packages of $name into $folder/$name" >&2
	rm -rf "$folder/$name.new"
	/usr/bin/python3 -m venv "$folder/$name.new"
	case $name in
	trl) install trl $bare $torch trl==1.16.0 ;;
	verl) # the last four are what its trainer's module imports beside what it asks for
		install verl $bare $torch verl==0.9.1 cachetools pillow uvicorn fastapi ;;
	verifiers) install verifiers $bare verifiers==0.4.0 ;;
	inspect) install inspect $bare inspect-ai==0.3.285 ;;
	skyrl) install skyrl $bare skyrl-gym==0.4.0 ;;
	openrlhf) # without the engines: what loads and asks a reward function needs none
		install openrlhf $bare $torch aiohttp numpy pylatexenc sympy transformers==5.15.0
		install openrlhf --no-deps openrlhf==0.11.2 ;;
	harbor) # asks for Python 3.12; the types that the adapter meets do not need it
		install harbor $bare
		install harbor --no-deps --ignore-requires-python harbor==0.26.0 ;;
	*) echo "setup: no trainer $name" >&2; exit 2 ;;
	esac
	# The environment's programs name its folder, which is final only now; nothing but its python is used.
	mv "$folder/$name.new" "$folder/$name"
done
