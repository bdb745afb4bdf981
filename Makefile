# The index of the project. `make help` explains every target.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
NERO := $(VENV)/bin/nero
READY := $(VENV)/.ready
# uv installs the packages: yours, or one that pip puts into the virtual environment. TORCH=cpu selects torch without CUDA,
# from PyTorch's own index; on x86_64 Linux that saves gigabytes.
UV := $(shell command -v uv)
TORCH ?=
DATA ?= mnist cifar10 wikitext2 multi30k inception
# Further settings for `nero sweep`, such as ARGS="machine=gpu machine.compile=true".
ARGS ?=
# How the runs of an experiment are launched (see docs/clusters.md): basic (on a machine with a GPU in two lanes, GPU-bound and
# CPU-bound runs side by side), joblib, submitit_local, submitit_slurm or ray, with
#   JOBS       runs at a time
#   GPUS       GPUs that those runs share (joblib, submitit_local) or that each of them has (submitit_slurm, ray)
#   PARTITION  SLURM partition
#   TIME       time limit of a job in minutes (submitit); a run that takes longer checkpoints and continues in another job
#   BUDGET     time limit of the sweep in seconds; then every run checkpoints and stops, and the next call continues
#   RANKS      processes that train one run together, usually one per GPU (imagenet)
# TASK and OPTIM run a part of an experiment, each one name or several: make table1 TASK=pong_ppo OPTIM=sgd,adam
# RESULTS is the output folder for tables and figures, by default results. RUNS is the store, by default the committed one,
# results/runs. FRESH=1 is RUNS=local/fresh/runs RESULTS=local/fresh/results: nothing is logged there at first, so that all runs
# are trained again, and the same command continues.
LAUNCHER ?= basic
RANKS ?= 1
# Environment variables of these names may have other purposes: only those given to make are used.
$(foreach name,JOBS GPUS TIME PARTITION TASK TASKS OPTIM LR EMBEDDED FRESH RUNS,$(if $(filter environment,$(origin $(name))),$(eval $(name) :=)))
TIMEOUTS := 100
TAKES_basic := RANKS
TAKES_joblib := JOBS GPUS
TAKES_submitit_local := JOBS GPUS TIME RANKS
TAKES_submitit_slurm := JOBS GPUS TIME RANKS PARTITION
TAKES_ray := JOBS GPUS
LAUNCHERS := $(patsubst TAKES_%,%,$(filter TAKES_%,$(.VARIABLES)))
GIVEN := $(if $(JOBS),JOBS) $(if $(GPUS),GPUS) $(if $(TIME),TIME) $(if $(PARTITION),PARTITION) $(if $(filter-out 1,$(RANKS)),RANKS)
ifeq ($(filter $(LAUNCHER),$(LAUNCHERS)),)
  $(error LAUNCHER=$(LAUNCHER): there are $(sort $(LAUNCHERS)))
endif
ifneq ($(filter-out $(TAKES_$(LAUNCHER)),$(GIVEN)),)
  $(error LAUNCHER=$(LAUNCHER) does not take $(filter-out $(TAKES_$(LAUNCHER)),$(GIVEN)), but $(TAKES_$(LAUNCHER)))
endif
SUBMITIT = hydra/launcher=$(LAUNCHER) $(if $(TIME),hydra.launcher.timeout_min=$(TIME)) $(if $(GPUS),hydra.launcher.gpus_per_node=$(GPUS)) \
  hydra.launcher.tasks_per_node=$(RANKS)
LAUNCH_basic :=
LAUNCH_joblib = hydra/launcher=joblib $(if $(JOBS),hydra.launcher.n_jobs=$(JOBS)) $(if $(GPUS),machine.gpus=$(GPUS))
LAUNCH_submitit_local = $(SUBMITIT) $(if $(JOBS),hydra.sweeper.max_batch_size=$(JOBS))
LAUNCH_submitit_slurm = $(SUBMITIT) $(if $(JOBS),hydra.launcher.array_parallelism=$(JOBS)) \
  $(if $(PARTITION),hydra.launcher.partition=$(PARTITION)) hydra.launcher.max_num_timeout=$(TIMEOUTS) \
  $(if $(filter-out 1,$(RANKS)),'hydra.launcher.setup=["export SLURM_KILL_BAD_EXIT=1"]')
LAUNCH_ray = hydra/launcher=ray $(if $(JOBS),+hydra.launcher.ray.init.num_cpus=$(JOBS)) +hydra.launcher.ray.remote.num_cpus=1 \
  $(if $(GPUS),+hydra.launcher.ray.remote.num_gpus=$(GPUS))
TORCHRUN = $(if $(filter-out 1,$(RANKS)),$(if $(filter basic,$(LAUNCHER)),-m torch.distributed.run --standalone --nproc-per-node $(RANKS)))
LAUNCH = $(strip $(LAUNCH_$(LAUNCHER)) $(if $(BUDGET),machine.budget_seconds=$(BUDGET)))
TRAIN = $(if $(TORCHRUN),$(PY) $(TORCHRUN) scripts/train.py --multirun,$(NERO) sweep) $(LAUNCH)
LOCAL := $(or $(NERO_LOCAL),local)
ifneq ($(FRESH),)
  RUNS := $(LOCAL)/fresh/runs
  RESULTS ?= $(LOCAL)/fresh/results
endif
# A report of other runs does not replace the committed tables.
OUT = $(or $(RESULTS),$(if $(RUNS),$(patsubst %/,%,$(RUNS))_results))
STORE = $(if $(RUNS),--store '$(RUNS)')
RECORDS = $(if $(RUNS),--records '$(OUT)/theory')
COMMA := ,
# $(call ONLY,KEY,NAMES): names with commas or spaces between them.
ONLY = $(if $(2),'only.$(1)=$(subst $() $(),$(COMMA),$(strip $(2)))')
# Status 1 of the report: runs are missing. Where only a part was asked for, the rest may be.
REST_MISSING = $(if $(TASK)$(OPTIM),|| test $$? -eq 1)
# Where a bundle goes; WITHOUT="torch torchvision triton" leaves out what the machine that it is for has already.
BUNDLE ?= bundle
SMOKE_STORE := results/smoke/runs
EXPERIMENTS := mnist table1 cgan pong ablation imagenet checks modern pipeline
ifneq ($(TASK)$(OPTIM),)
  ifneq ($(filter-out $(EXPERIMENTS) compare,$(MAKECMDGOALS)),)
    $(error TASK and OPTIM choose a part of an experiment ($(EXPERIMENTS)), not of $(filter-out $(EXPERIMENTS),$(MAKECMDGOALS)))
  endif
endif
ifneq ($(FRESH)$(RUNS),)
  ifneq ($(filter-out $(EXPERIMENTS) theory,$(MAKECMDGOALS)),)
    $(error FRESH and RUNS are for an experiment ($(EXPERIMENTS) theory), not for $(filter-out $(EXPERIMENTS) theory,$(MAKECMDGOALS)))
  endif
endif
# Tests side by side, one process per core up to four.
WORKERS ?= --numprocesses auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup lock data smoke compare test test-all test-frameworks lint docs $(EXPERIMENTS) theory plan report figures notebooks bench bench-tasks bench-imagenet bench-report bench-store bench-packing faults bundle clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## virtual environment with the tested versions (every other target does this first; TORCH=cpu: without CUDA)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "error: Python 3.11 or newer is needed, not %d.%d; set PYTHON=python3.11 or the like" % sys.version_info[:2])'
	@$(PYTHON) -c 'import sys; sys.exit(sys.platform not in ("linux", "darwin") and "error: Linux or macOS is needed, not " + sys.platform)'
	@echo "setting up $(VENV) with the versions of constraints.txt"
	@$(if $(UV),$(UV) venv --quiet --allow-existing --seed --python $(PYTHON) $(VENV),$(PYTHON) -m venv $(VENV))
	@$(if $(UV),,$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv)
	@$(or $(UV),$(VENV)/bin/uv) pip install --compile-bytecode --python $(PY) $(if $(TORCH),--torch-backend $(TORCH)) --constraint constraints.txt --editable '.[test]'
	@touch $(READY)
	@echo "ready: source $(VENV)/bin/activate, then nero --help"

lock: $(READY)  ## constraints.txt, the versions of all packages on every platform, after a change of pyproject.toml (ARGS=--upgrade for newer ones)
	$(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --custom-compile-command 'make lock' \
	  --extra dev $(ARGS) --output-file constraints.txt pyproject.toml

data: $(READY)  ## get and check the real data sets (DATA="mnist cifar10 wikitext2 multi30k inception" by default)
	$(NERO) data $(DATA)

smoke: $(READY)  ## every step from training to the HTML report, with small networks on embedded data; minutes on a laptop
	NERO_RUNS=$(SMOKE_STORE) $(TRAIN) experiment=smoke machine=cpu $(ARGS)
	$(NERO) report smoke --page --store $(SMOKE_STORE) --out results/smoke

compare: $(READY)  ## compare your own optimiser with Nero, SGD, Adam and LAMB: OPTIM=my_package.MyOptimizer TASKS="mnist_mlp100 cifar10_vgg11" LR="0.001 0.01" (EMBEDDED=1: a quick trial without downloads; ARGS=--plan: expected time)
	$(NERO) compare $(OPTIM) $(if $(or $(TASKS),$(TASK)),--tasks $(or $(TASKS),$(TASK))) $(if $(LR),--lr $(LR)) $(if $(EMBEDDED),--embedded) $(LAUNCH) $(ARGS)

test: $(READY)  ## the fast tests, in minutes (CPU only; those for a GPU or for real data skip themselves with a reason)
	$(PY) -m pytest $(WORKERS) -m "not slow"

test-all: $(READY)  ## all other tests: complete commands, kills and full disks, SLURM, browser, notebooks
	$(PY) -m pytest $(WORKERS) -m slow

test-frameworks: $(READY)  ## Nero in transformers, accelerate, Lightning and peft, which are installed first; without them test-all skips these tests
	$(or $(UV),$(VENV)/bin/uv) pip install --compile-bytecode --python $(PY) --constraint constraints.txt --editable '.[test,frameworks]'
	$(PY) -m pytest tests/integration/test_frameworks.py

docs: $(READY)  ## the manual as a site, build/site/index.html; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

lint: $(READY)  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

$(EXPERIMENTS): $(READY)
	$(TRAIN) experiment=$@ $(call ONLY,task,$(TASK)) $(call ONLY,optim,$(OPTIM)) $(if $(RUNS),'store=$(RUNS)') $(ARGS)
	$(NERO) report $@ $(STORE) $(if $(OUT),--out '$(OUT)') $(REST_MISSING)

table1:  ## rerun Table 1: train the pending ones of 6 tasks x 4 optimisers x 7 runs, then make the table (here and below, TASK=cifar10_resnet18 OPTIM=sgd is a part; FRESH=1 trains logged runs again, in a separate store)
ablation:  ## rerun Figures 1 and 2 and Table 2
mnist:  ## rerun Figure 3
cgan:  ## rerun the paper's search for momentum in the cGAN: Table 1's runs without it, and the same with 0.9
pong:  ## rerun Figure 8: Table 1's runs on Pong, and LAMB with momentum
imagenet:  ## rerun Figure 9, for example by RANKS=4 processes on four GPUs
checks:  ## CIFAR-10 and the cGAN in TF32 and in bf16, CIFAR-10 with another initialisation, translation with other batches and embeddings (not in the paper)
pipeline:  ## Figure 9's network, schedule and input pipeline on CIFAR-10 as JPEG files, at 64 pixels (not in the paper)
modern:  ## AdamW, Muon, Schedule-Free, Lion and SOAP by the paper's protocol, next to its optimisers (not in the paper)

theory: $(READY)  ## the paper's theory on trained networks: train the pending runs, measure those without a record, then make tables and figures
	$(TRAIN) experiment=theory $(if $(RUNS),'store=$(RUNS)') $(ARGS)
	$(NERO) theory measure --experiment theory --retrain '$(or $(OUT),results)/theory/runs' $(STORE) $(RECORDS)
	$(NERO) theory along --experiment theory $(STORE) $(RECORDS)
	$(NERO) theory report $(RECORDS) $(if $(OUT),--out '$(OUT)')

plan: $(READY)  ## list the pending runs of each experiment, and how long they should take; trains nothing
	@$(NERO) plan $(EXPERIMENTS) theory

report: $(READY)  ## tables, figures, the page results/report.html and the README's table from the logged runs; fails, after writing, when runs are missing
	$(NERO) report

figures: report  ## the same as make report, which makes figures and tables together

notebooks: $(READY)  ## execute the notebooks on the logged runs, into results/notebooks (ARGS=--in-place: update their committed outputs)
	$(NERO) notebooks $(ARGS)

bench: $(READY)  ## milliseconds per optimiser step on this machine, as tables (ARGS="--sets resnet50" for less)
	$(PY) -m benchmarks.optim $(ARGS)

bench-tasks: $(READY)  ## seconds per epoch of a task with each optimiser, and to start a run; needs its data (make data DATA=mnist)
	$(PY) -m benchmarks.tasks $(ARGS)

bench-imagenet: $(READY)  ## images per second of ResNet-50: of the step alone, and with images from JPEG files
	$(PY) -m benchmarks.imagenet $(ARGS)

bench-report: $(READY)  ## seconds and memory from a store of 5,000 synthetic runs to a finished page
	$(PY) -m benchmarks.report $(ARGS)

bench-store: $(READY)  ## time that plan and store add to one run of VGG-11; stores of 10,000 and 20,000 synthetic runs; seconds of commands that train nothing
	$(PY) -m benchmarks.store $(ARGS)

bench-packing: $(READY)  ## when it pays to run several trainings on one GPU (ARGS='--task cifar10_cgan --jobs 1 --beside "4 pong_ppo" machine=gpu')
	$(PY) -m benchmarks.packing $(ARGS)

faults: $(READY)  ## kills, full disks, damaged files and similar faults, many times, with a table (docs/promises.md)
	$(PY) -m benchmarks.faults $(ARGS)

bundle: $(READY)  ## code, wheels and data in archives, for machines without a network (PLATFORM=manylinux_2_28_x86_64 PYTHON_VERSION=3.12 ARCHIVE_SIZE=64M DATA_IN_BUNDLE="mnist cifar10")
	$(NERO) bundle --out $(BUNDLE) $(if $(ARCHIVE_SIZE),--archive-size $(ARCHIVE_SIZE)) $(if $(PYTHON_VERSION),--python $(PYTHON_VERSION)) \
	  $(if $(PLATFORM),--platform $(PLATFORM)) $(if $(DATA_IN_BUNDLE),--data $(DATA_IN_BUNDLE)) $(if $(WITHOUT),--without $(WITHOUT)) $(ARGS)

clean:  ## remove caches and the virtual environment; runs, results and data are never touched
	rm -rf $(VENV) build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
