"""A SLURM cluster on one machine, to test sweeps: controller, node and munge as root, with all files in one folder.

python3 scripts/slurm_on_one_machine.py install          install missing Debian packages
python3 scripts/slurm_on_one_machine.py start DIR        print the SLURM_CONF that sbatch, squeue and scancel need
python3 scripts/slurm_on_one_machine.py stop DIR         stop its jobs and daemons, and no others
python3 scripts/slurm_on_one_machine.py run DIR COMMAND  start, run the command, always stop

Needs no systemd, no cgroups and no accounting. Free ports are chosen at the start, so several clusters can coexist.
"""

import argparse
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
PACKAGES = ("slurm-wlm", "munge")
PARTITIONS = ("main", "other")
START_SECONDS = 40
STOP_SECONDS = 15
LONGEST_SOCKET_PATH = 107  # bytes, on Linux

CONFIG = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A job that is requeued starts again once its old credential is void: in seconds, not in two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.its_pid
SlurmdPidFile={folder}/slurmd.its_pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=10
MinJobAge={forget_seconds}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={megabytes} State=UNKNOWN
"""


class Trouble(Exception):
    """SLURM cannot run here; the message says why."""


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("install", help="get Debian's packages where they are missing")
    for name, meaning in (
        ("start", "start the daemons and print SLURM_CONF"),
        ("run", "start, run a command, stop"),
        ("stop", "end jobs and daemons"),
    ):
        action = actions.add_parser(name, help=meaning)
        action.add_argument("folder", type=Path, metavar="DIR", help="state, logs, keys and sockets")
        if name != "stop":
            action.add_argument(
                "--forget",
                type=int,
                default=300,
                metavar="SECONDS",
                help="until squeue no longer knows a job that has ended (%(default)s, SLURM's own)",
            )
        if name == "run":
            action.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    args = parser.parse_args(words)
    try:
        if args.action == "install":
            install()
        elif args.action == "stop":
            stop(args.folder.resolve())
        elif args.action == "start":
            print(f"export SLURM_CONF={shlex.quote(str(start(args.folder.resolve(), args.forget)))}")
        elif not args.command:
            parser.error("run needs a command")
        else:
            return run(args.folder.resolve(), args.forget, args.command)
    except Trouble as trouble:
        print(f"error: {trouble}", file=sys.stderr)
        return 1
    return 0


def install() -> None:
    if not missing_tools():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Trouble(f"{' and '.join(PACKAGES)} can be installed only by root, with apt-get")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        result = subprocess.run(["apt-get", *words], env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if result.returncode != 0:
            last = result.stderr.strip().splitlines()[-1:]
            raise Trouble(f"apt-get {words[0]} failed: {' '.join(last)}")


def missing_tools() -> list[str]:
    return [name for name in TOOLS if found(name) is None]


def found(name: str) -> str | None:
    """Path of a program; daemons may be in folders that are only in root's PATH."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


def start(folder: Path, forget_seconds: int = 300) -> Path:
    """Start the daemons, wait for an idle node and return the config file. A failed start leaves nothing running."""
    if missing := missing_tools():
        raise Trouble(f"{', '.join(missing)} not found; as root: python3 {sys.argv[0]} install")
    if os.geteuid() != 0:
        raise Trouble("SLURM's daemons are started by root")
    if len(os.fsencode(folder / "munge.socket")) > LONGEST_SOCKET_PATH:
        raise Trouble(f"{folder} is too long a path for a socket: choose a shorter one")
    if any(is_own(pid, folder) for pid in written_pids(folder)):
        raise Trouble(f"the daemons of {folder} are running; stop them first")
    config = write_files(folder, forget_seconds)
    try:
        start_daemon(folder, "munged", munged_options(folder))
        wait_for("munged", folder, lambda: (folder / "munge.socket").exists())
        start_daemon(folder, "slurmctld", ["-D", "-c", "-f", str(config)])
        start_daemon(folder, "slurmd", ["-D", "-f", str(config), "-N", host_name()])
        wait_for("an idle node", folder, lambda: set(node_states(config)) == {"idle"})
    except BaseException:
        stop(folder)
        raise
    return config


def write_files(folder: Path, forget_seconds: int) -> Path:
    for path in (folder, folder / "state", folder / "spool"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)
    key = folder / "munge.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
    controller_port, node_port = free_ports(2)
    text = CONFIG.format(
        folder=folder,
        host=host_name(),
        controller_port=controller_port,
        node_port=node_port,
        cpus=len(os.sched_getaffinity(0)),
        megabytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20,
        forget_seconds=forget_seconds,
    )
    for number, name in enumerate(PARTITIONS):
        text += f"PartitionName={name} Nodes=ALL Default={'NO' if number else 'YES'} MaxTime=INFINITE State=UP\n"
    config = folder / "slurm.conf"
    if slurm_version() >= (23, 11):
        # Newer versions otherwise look for cgroups, which a container may not have.
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    config.write_text(text)
    return config


def slurm_version() -> tuple[int, int]:
    answer = subprocess.run([found("slurmctld") or "slurmctld", "-V"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def host_name() -> str:
    return socket.gethostname().split(".")[0]


def free_ports(count: int) -> list[int]:
    """Distinct free ports: all sockets stay bound until the last port is chosen."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def munged_options(folder: Path) -> list[str]:
    places = {"socket": "socket", "key-file": "key", "pid-file": "its_pid", "log-file": "log", "seed-file": "seed"}
    # --force, because munged otherwise refuses a folder below a world-writable one such as /tmp.
    return [
        "--foreground",
        "--force",
        "--num-threads=2",
        *(f"--{option}={folder}/munge.{end}" for option, end in places.items()),
    ]


def start_daemon(folder: Path, name: str, options: Sequence[str]) -> None:
    """Start a daemon in a new session, so that Ctrl-C does not reach it."""
    with (folder / f"{name}.out").open("ab") as out:
        daemon = subprocess.Popen(
            [found(name) or name, *options],
            env={**os.environ, "SLURM_CONF": str(folder / "slurm.conf")},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    (folder / f"{name}.pid").write_text(f"{daemon.pid}\n")


def wait_for(what: str, folder: Path, is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + START_SECONDS
    while not is_there():
        if time.monotonic() > end:
            raise Trouble(f"{what} did not come up within {START_SECONDS} s\n{ends_of_logs(folder)}")
        time.sleep(0.1)


def node_states(config: Path) -> list[str]:
    return asked(config, "sinfo", "--noheader", "--format=%T")


def asked(config: Path, *command: str) -> list[str]:
    """Words of a command's output; empty if the controller does not answer."""
    env = {**os.environ, "SLURM_CONF": str(config)}
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=20).stdout.split()
    except subprocess.TimeoutExpired:
        return []


def ends_of_logs(folder: Path) -> str:
    last = {path: path.read_text(errors="replace").splitlines()[-8:] for path in sorted(folder.glob("*.[lo][ou][gt]"))}
    return "\n".join("\n  ".join([f"{path}:", *lines]) for path, lines in last.items() if lines)


def stop(folder: Path) -> None:
    config = folder / "slurm.conf"
    if not config.exists():
        raise Trouble(f"no SLURM was started in {folder}")
    # Stop the daemons first, one after the other, so that nothing new starts; then the processes that outlive them.
    for pid in written_pids(folder):
        if is_own(pid, folder):
            end_all([pid], signal.SIGTERM)
    end_all(list(steps(folder)), signal.SIGKILL)
    end_all(list(processes_of_jobs(folder)), signal.SIGKILL)
    for path in folder.glob("*.pid"):
        path.unlink()


def end_all(pids: list[int], first: signal.Signals) -> None:
    """Send a signal to all processes, wait, then kill those that are left."""
    for number in (first, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        end = time.monotonic() + STOP_SECONDS
        while (pids := [pid for pid in pids if is_running(pid)]) and time.monotonic() < end:
            time.sleep(0.05)


def written_pids(folder: Path) -> list[int]:
    """Daemons in the order to stop them: the node first, so that it can notify the controller, and munged last."""
    paths = [folder / f"{name}.pid" for name in ("slurmd", "slurmctld", "munged")]
    return [int(path.read_text()) for path in paths if path.exists()]


def is_running(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # else a child of this process would stay a zombie
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def is_own(pid: int, folder: Path) -> bool:
    """Whether a process belongs to this SLURM: the id may have been reused by another process."""
    return b"SLURM_CONF=" + os.fsencode(folder / "slurm.conf") in environment_of(pid)


def processes_of_jobs(folder: Path) -> Iterator[int]:
    for pid in all_processes():
        if is_own(pid, folder) and any(word.startswith(b"SLURM_JOB_ID=") for word in environment_of(pid)):
            yield pid


def steps(folder: Path) -> Iterator[int]:
    """slurmstepd processes, which outlive the daemon that started them and do not show their environment."""
    for pid in all_processes():
        with suppress(OSError):
            program, place = (os.readlink(f"/proc/{pid}/{name}") for name in ("exe", "cwd"))
            if Path(program).name.startswith("slurmstepd") and Path(place) == folder:
                yield pid


def all_processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def run(folder: Path, forget_seconds: int, command: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # runs the `finally` below
    config = start(folder, forget_seconds)
    try:
        env = {**os.environ, "SLURM_CONF": str(config)}
        subprocess.run(["sinfo"], env=env, stdout=sys.stderr, check=False)
        return subprocess.run(command, env=env, check=False).returncode
    finally:
        stop(folder)


if __name__ == "__main__":
    sys.exit(main())
