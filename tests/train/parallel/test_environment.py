"""Which process of how many this is, by what launchers leave in the environment."""

from __future__ import annotations

import pytest

from danalab.errors import UserError
from danalab.train.config.train_config import TrainConfig
from danalab.train.parallel.layout import RankLayout, find_place, first_host, layout_of
from danalab.train.parallel.world import World, own_gpu

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[03-05,9]",
    "SLURM_JOB_ID": "1234567",
}


def config(**settings: object) -> TrainConfig:
    return TrainConfig(heads=3, **settings)  # type: ignore[arg-type]


def test_a_process_by_itself_has_no_place():
    assert find_place({}) is None
    # the shell of an sbatch job, before any srun
    assert find_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}) is None


def test_torchrun_and_srun_tell_the_place():
    place = find_place(TORCHRUN)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.address, place.port) == (5, 8, 1, "node1", 29500)
    place = find_place(SRUN)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.address, place.launcher) == (
        3,
        4,
        1,
        "gpu03",
        "srun",
    )


def test_torchrun_below_srun_wins():
    place = find_place({**SRUN, **TORCHRUN})
    assert place is not None
    assert place.launcher == "torchrun"


def test_all_tasks_of_a_step_meet_at_one_port_and_those_of_another_job_elsewhere():
    ports = [find_place({**SRUN, "SLURM_PROCID": str(rank)}).port for rank in range(4)]  # type: ignore[union-attr]
    assert len(set(ports)) == 1
    other = find_place({**SRUN, "SLURM_JOB_ID": "1234568"})
    assert other is not None
    assert other.port != ports[0]
    assert 1024 < other.port < 65536


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu[03-05,9]", "gpu03"),
        ("gpu7", "gpu7"),
        ("a1,b2", "a1"),
        ("n[1,3]-ib,x", "n1-ib"),
        ("c-12-[001-064]", "c-12-001"),
    ],
)
def test_the_first_host_of_a_compressed_list(nodes, host):
    assert first_host(nodes) == host


def test_a_broken_list_of_nodes_is_named():
    with pytest.raises(UserError, match="SLURM_STEP_NODELIST"):
        first_host("")


def test_each_rank_takes_its_own_gpu():
    assert own_gpu(2, 4, "torchrun") == 2
    assert own_gpu(3, 1, "srun") == 0  # a task that sees its own alone
    with pytest.raises(UserError, match="rank 4 of this machine has no GPU"):
        own_gpu(4, 4, "torchrun")


# ---- arrangements ----


def test_several_processes_are_replicas_unless_said_otherwise():
    assert layout_of(config(), {}) == RankLayout("single")
    assert layout_of(config(nproc=2), {}) == RankLayout("ddp")
    assert layout_of(config(), TORCHRUN) == RankLayout("ddp")
    assert layout_of(config(distributed_backend="nccl"), {}).backend == "ddp"
    with pytest.raises(UserError, match="leave --nproc out"):
        layout_of(config(nproc=2), TORCHRUN)
    with pytest.raises(UserError, match="--device cuda:1: 2 ranks would share it"):
        layout_of(config(nproc=2, device="cuda:1"), {})


def test_ranks_are_divided_among_the_dimensions_of_the_mesh():
    assert RankLayout("fsdp", 2, 2).shape(8) == {"replicate": 2, "shard": 2, "tp": 2}
    assert RankLayout("fsdp").shape(4) == {"shard": 4}
    assert RankLayout("zero").shape(3) == {"replicate": 3}
    assert RankLayout().shape(1) == {}


def test_ranks_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match=r"--tp-size 2 x --replicas 2: 6 ranks cannot be divided by 4"):
        RankLayout("fsdp", 2, 2).shape(6)
    with pytest.raises(UserError, match="2 were started"):
        RankLayout("single").shape(2)


@pytest.mark.parametrize("backend", ["zero", "ddp", None])
@pytest.mark.parametrize("name", ["tp_size", "replicas"])
def test_what_only_fsdp_can_do_is_refused_elsewhere(backend, name):
    with pytest.raises(UserError, match="only with --distributed-backend fsdp"):
        config(**{name: 2, "distributed_backend": backend})


def test_a_world_of_one_needs_nobody():
    world = World()
    assert world.is_main
    assert world.agree(7) == 7
    assert world.gather("x") == ["x"]
    assert world.broadcast("x") == "x"
    assert world.sums([1.5]) == [1.5]
    assert world.compute_on_rank0(lambda: 3) == 3
    world.set_collective_timeout(1.0)
