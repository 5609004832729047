"""What a GPU must show, in one call of eight minutes, with torch and numpy alone.

    python bench/gpu_check.py [--out FOLDER] [--seconds 470]     correctness, then speed; rows in FOLDER/check.jsonl
    python bench/gpu_check.py --shakespeare TEXT --seconds 290   nanoGPT's character model with AdamW and ADana
    python bench/gpu_check.py --dry-run                          every line of it at tiny sizes on a CPU

Sections are in the order of their worth. Rows are written as each section ends; one that fails costs the others
nothing, and none is begun after the time is up.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from danalab.models import ModelConfig, build_model
from danalab.optim import build_optimizer

Row = dict[str, Any]
RULES = (
    "adana",
    "dana-mk4",
    "dana-star",
    "dana-star-mk4",
    "adamw-decaying-wd",
    "ademamix",
    "ademamix-decaying-wd",
)
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "4090": 165.0}
"""Dense bfloat16 matrix products by name of the device [TFLOP/s], from the vendor's data sheets."""


@dataclass(frozen=True)
class Bench:
    """The device, and how large things are on it."""

    device: torch.device
    dry: bool

    def pick(self, real: int, tiny: int) -> int:
        return tiny if self.dry else real

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], Any], repeats: int = 5, each: int = 3) -> float:
        """Median time of a call; the first ones are not counted."""
        for _ in range(2):
            call()
        times = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            for _ in range(each):
                call()
            self.wait()
            times.append((time.perf_counter() - start) / each)
        return statistics.median(times)

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16)


# ---- correctness ----


def rules(bench: Bench) -> Iterator[Row]:
    """Each rule, compiled on the device, against itself in float64 on the CPU; no recompilation as scalars change."""
    shapes = [(64, 48), (48,), (7, 5, 3)]
    for name in RULES:
        torch.manual_seed(0)
        start = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
        copies = {
            "device": [nn.Parameter(p.float().to(bench.device)) for p in start],
            "oracle": [nn.Parameter(p.clone()) for p in start],
        }
        settings = {"weight_decay": 0.01}
        optimizers = {
            "device": build_optimizer(name, copies["device"], lr=1e-2, **settings),
            "oracle": build_optimizer(name, copies["oracle"], lr=1e-2, fused=False, **settings),
        }
        compiled = 0
        for step in range(30):
            if step == 3:
                compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            grads = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
            for key, params in copies.items():
                for group in optimizers[key].param_groups:
                    group["lr"] = 1e-2 * (1 - step / 40)
                for p, g in zip(params, grads, strict=True):
                    p.grad = g.to(p.device, p.dtype)
                optimizers[key].step()
        pairs = zip(copies["device"], copies["oracle"], strict=True)
        error = max(
            float((a.detach().cpu().double() - b.detach()).abs().max() / b.detach().abs().max())
            for a, b in pairs
        )
        again = torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled
        yield {
            "task": name,
            "largest_relative_error": error,
            "recompilations": again,
            "ok": error < 1e-4 and not again,
        }


def matrices(bench: Bench) -> Iterator[Row]:
    """Muon and its relatives on the device against float32 on the CPU; bfloat16 products differ in the third digit."""
    for name in ("muon", "d-muon", "dana-muon"):
        torch.manual_seed(0)
        start = torch.randn(128, 64)
        grads = [torch.randn(128, 64) for _ in range(5)]
        ends = []
        for device in (torch.device("cpu"), bench.device):
            p = nn.Parameter(start.clone().to(device))
            optimizer = build_optimizer(name, [{"params": [p], "kind": "matrix"}], lr=1e-2)
            for g in grads:
                p.grad = g.to(device)
                optimizer.step()
            ends.append(p.detach().cpu() - start)
        error = float((ends[0] - ends[1]).norm() / ends[0].norm())
        yield {"task": name, "relative_error_of_the_way": error, "ok": error < 0.05}


def small_model(bench: Bench, seed: int = 0) -> nn.Module:
    config = ModelConfig("enoki", 128, 2, 2, 64, 512, vocab_size=512, seq_len=128)
    return build_model(config, seed=seed).to(bench.device)


def tokens(bench: Bench, batch: int, length: int, vocabulary: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (batch, length + 1), generator=generator).to(bench.device)


def next_token_loss(model: Any, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())


def train_steps(
    bench: Bench, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range
) -> list[float]:
    losses = []
    for step in steps:
        with bench.autocast():
            loss = next_token_loss(model, tokens(bench, 8, 128, 512, step % 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def autocast(bench: Bench) -> Iterator[Row]:
    """Training in bfloat16 learns four batches."""
    for name in ("adana", "dana-star-mk4", "dana-muon"):
        model = small_model(bench)
        losses = train_steps(bench, model, build_optimizer(name, model, lr=3e-3), range(bench.pick(60, 12)))
        yield {"task": name, "first": losses[0], "last": losses[-1], "ok": losses[-1] < losses[0]}


def resume(bench: Bench) -> Iterator[Row]:
    """Six steps, and three, a saved state, three: the same bits."""
    for name in ("adana", "dana-muon"):
        whole = small_model(bench)
        train_steps(bench, whole, build_optimizer(name, whole, lr=3e-3), range(6))
        first = small_model(bench)
        optimizer = build_optimizer(name, first, lr=3e-3)
        train_steps(bench, first, optimizer, range(3))
        with tempfile.TemporaryDirectory() as folder:
            torch.save([first.state_dict(), optimizer.state_dict()], f"{folder}/state.pt")
            states = torch.load(f"{folder}/state.pt", weights_only=True)
        second = small_model(bench, seed=1)
        second.load_state_dict(states[0])
        other = build_optimizer(name, second, lr=3e-3)
        other.load_state_dict(states[1])
        train_steps(bench, second, other, range(3, 6))
        pairs = zip(whole.parameters(), second.parameters(), strict=True)
        yield {"task": name, "ok": all(torch.equal(a, b) for a, b in pairs)}


@contextmanager
def one_rank(bench: Bench) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if bench.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def parallel(bench: Bench) -> Iterator[Row]:
    """DDP and FSDP2 of one rank make the steps of no wrapper."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    with one_rank(bench):
        for name in ("adana", "dana-muon"):
            losses = {}
            for way in ("alone", "ddp", "fsdp2"):
                model: Any = small_model(bench)
                if way == "ddp":
                    model = nn.parallel.DistributedDataParallel(model)
                if way == "fsdp2":
                    fully_shard(
                        model, mesh=torch.distributed.device_mesh.init_device_mesh(bench.device.type, (1,))
                    )
                losses[way] = train_steps(bench, model, build_optimizer(name, model, lr=3e-3), range(6))
                sharded = any(isinstance(p, DTensor) for p in model.parameters())
            worst = max(
                abs(a - b)
                for way in ("ddp", "fsdp2")
                for a, b in zip(losses["alone"], losses[way], strict=True)
            )
            yield {
                "task": name,
                "largest_difference": worst,
                "sharded": sharded,
                "ok": worst < 1e-3 and sharded,
            }


# ---- speed ----


def parameters(bench: Bench, millions: int) -> list[nn.Parameter]:
    """Shapes of a GPT-2 of about this size; a tenth of a million in a dry run."""
    width, layers = {124: (768, 12), 350: (1024, 24)}[millions]
    width, layers, rows = (32, 2, 512) if bench.dry else (width, layers, 50_304)
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (width,), (width,)]
    shapes = [(rows, width), *(shape for _ in range(layers) for shape in block)]
    made = [nn.Parameter(torch.randn(shape, device=bench.device) * 0.02) for shape in shapes]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def step(bench: Bench) -> Iterator[Row]:
    """A step against torch's fused AdamW, and of Muon against torch's."""
    for millions in (124, 350):
        params = parameters(bench, millions)
        base = bench.seconds(torch.optim.AdamW(params, lr=1e-4, fused=True).step)
        for name in ("adana", "dana-star-mk4"):
            optimizer = build_optimizer(name, params, lr=1e-4)
            start = time.perf_counter()
            optimizer.step()
            bench.wait()
            first = time.perf_counter() - start
            taken = bench.seconds(optimizer.step)
            yield {
                "task": f"{name}, {millions} M",
                "ms": 1e3 * taken,
                "of_fused_adamw": taken / base,
                "first_s": first,
            }
        hidden = [p for p in params[1:] if p.ndim == 2]
        theirs = bench.seconds(torch.optim.Muon(hidden, lr=1e-4).step, repeats=3, each=1)
        ours = build_optimizer("dana-muon", [{"params": hidden, "kind": "matrix"}], lr=1e-4)
        taken = bench.seconds(ours.step, repeats=3, each=1)
        yield {"task": f"dana-muon, {millions} M", "ms": 1e3 * taken, "of_torch_muon": taken / theirs}


def throughput(bench: Bench) -> Iterator[Row]:
    """Tokens a second and MFU of Enoki with 12 heads, eager and compiled; whether attention is the flash kernel."""
    heads, length, batch = bench.pick(12, 2), bench.pick(1024, 128), bench.pick(16, 2)
    config = ModelConfig(
        "enoki", 64 * heads, bench.pick(9, 2), heads, 64, 256 * heads, bench.pick(50_304, 512), length
    )
    peak = next((value for key, value in PEAK_TFLOPS.items() if key in name_of(bench.device)), None)
    for compiled in (False, True):
        model = build_model(config, seed=0).to(bench.device)
        optimizer = build_optimizer("adana", model, lr=1e-4)
        called: Any = torch.compile(model) if compiled else model
        ids = tokens(bench, batch, length, config.vocab_size, 0)

        def one(
            called: Any = called, optimizer: torch.optim.Optimizer = optimizer, ids: Tensor = ids
        ) -> None:
            with bench.autocast():
                loss = next_token_loss(called, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        one()
        with torch.profiler.profile() as profiler:
            one()
        flash = any("flash" in event.key.lower() for event in profiler.key_averages())
        rate = batch * length / bench.seconds(one, repeats=3)
        n_params = sum(p.numel() for p in model.parameters())
        flops = 6 * n_params + 12 * config.n_layers * config.d_model * length
        mfu = None if peak is None else rate * flops / (peak * 1e12)
        name = f"enoki, {n_params / 1e6:.0f} M, {'compiled' if compiled else 'eager'}"
        yield {"task": name, "tokens_per_second": rate, "mfu": mfu, "flash_attention": flash}


def decode(bench: Bench) -> Iterator[Row]:
    """Tokens a second of the engine at batch 1, 8 and 64; its greedy tokens are those of the whole text each time."""
    from danalab.inference import Engine, Request, SamplingParameters

    heads, new = bench.pick(12, 2), bench.pick(64, 8)
    config = ModelConfig(
        "enoki", 64 * heads, bench.pick(9, 2), heads, 64, 256 * heads, bench.pick(50_304, 512), 512
    )
    model: Any = build_model(config, seed=0).to(bench.device).eval()
    engine = Engine(model, max_batch_size=64, backend="eager")
    greedy = SamplingParameters(max_tokens=new, temperature=0.0)

    @torch.no_grad()
    def whole(ids: Tensor) -> list[int]:
        for _ in range(new):
            ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], dim=1)
        return ids[0, -new:].tolist()

    for batch in (1, 8, 64):
        prompts = tokens(bench, batch, 31, config.vocab_size, batch)
        requests = [Request(row, greedy) for row in prompts.tolist()]
        taken = bench.seconds(lambda requests=requests: engine.generate(requests), repeats=3, each=1)
        first = list(engine.generate(requests)[0].tokens)
        wanted = whole(prompts[:1])
        same = sum(a == b for a, b in zip(first, wanted, strict=True)) / new
        # Products of another shape round otherwise: one near tie changes all that follow.
        yield {
            "task": f"batch {batch}",
            "tokens_per_second": batch * new / taken,
            "equal": same,
            "ok": first[0] == wanted[0],
        }


def checkpoint(bench: Bench) -> Iterator[Row]:
    """Model and state of ADana to disk and back."""
    params = parameters(bench, 124)
    optimizer = build_optimizer("adana", params, lr=1e-4)
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/state.pt"
        start = time.perf_counter()
        torch.save(optimizer.state_dict(), path)
        written = time.perf_counter() - start
        size = os.path.getsize(path)
        start = time.perf_counter()
        optimizer.load_state_dict(torch.load(path, weights_only=True))
        read = time.perf_counter() - start
    yield {"task": "ADana, 124 M", "gib": size / 2**30, "write_s": written, "read_s": read}


SECTIONS: dict[str, Callable[[Bench], Iterable[Row]]] = {
    "rules": rules,
    "matrices": matrices,
    "autocast": autocast,
    "resume": resume,
    "parallel": parallel,
    "step": step,
    "throughput": throughput,
    "decode": decode,
    "checkpoint": checkpoint,
}


# ---- the second call ----


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        p = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(*split.permute(2, 0, 3, 1, 4), is_causal=True, dropout_p=p)
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(batch, length, width)), p)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), p)


class CharacterGPT(nn.Module):
    """nanoGPT's model for characters: 6 layers, 6 heads, width 384, dropout 0.2, tied head; 10.65 M parameters."""

    def __init__(self, vocabulary: int, width: int, layers: int, length: int):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 6, 0.2) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * layers) if last else 1))
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = F.dropout(self.emb(ids) + self.pos.weight[: ids.shape[1]], 0.2, self.training)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def shakespeare(bench: Bench, text: Path, deadline: float, write: Callable[[Row], None]) -> None:
    """AdamW at nanoGPT's settings (published 1.4697 after 5,000 steps) and ADana, alternating, as many steps as fit."""
    letters = text.read_text(encoding="utf-8")
    ids = {character: i for i, character in enumerate(sorted(set(letters)))}
    data = torch.tensor([ids[character] for character in letters])
    cut = int(0.9 * len(data))
    parts = {"train": data[:cut].to(bench.device), "val": data[cut:].to(bench.device)}
    width, layers, length, batch = (384, 6, 256, 64) if not bench.dry else (48, 2, 32, 8)
    total, warmup = bench.pick(5000, 20), bench.pick(100, 2)

    def draw(part: str, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(parts[part]) - length - 1, (batch, 1), generator=generator).to(
            bench.device
        )
        return parts[part][starts + torch.arange(length + 1, device=bench.device)]

    @torch.no_grad()
    def measured(model: nn.Module) -> float:
        model.eval()
        generator = torch.Generator().manual_seed(99)
        with bench.autocast():
            losses = [float(next_token_loss(model, draw("val", generator))) for _ in range(bench.pick(50, 2))]
        model.train()
        return statistics.fmean(losses)

    runs: dict[str, dict[str, Any]] = {}
    for name, lr in (("adamw", 1e-3), ("adana", 1e-3)):
        torch.manual_seed(1337)
        model: Any = CharacterGPT(len(ids), width, layers, length).to(bench.device)
        settings = (
            {"weight_decay": 0.1, "betas": (0.9, 0.99)}
            if name == "adamw"
            else {"omega": 4.0, "horizon": total}
        )
        optimizer = build_optimizer(name, model, lr=lr, **settings)
        called = model if bench.dry else torch.compile(model)
        runs[name] = {
            "model": model,
            "called": called,
            "optimizer": optimizer,
            "lr": lr,
            "draw": torch.Generator(),
        }
        runs[name]["draw"].manual_seed(1337)
    for done in range(0, total, bench.pick(250, 10)):
        for name, own in runs.items():
            for i in range(done, min(done + bench.pick(250, 10), total)):
                cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * i / total))
                peaks = own.setdefault("peaks", [group["lr"] for group in own["optimizer"].param_groups])
                for group, peak in zip(own["optimizer"].param_groups, peaks, strict=True):
                    group["lr"] = peak * min((i + 1) / warmup, cosine)
                with bench.autocast():
                    loss = next_token_loss(own["called"], draw("train", own["draw"]))
                loss.backward()
                nn.utils.clip_grad_norm_(own["model"].parameters(), 1.0)
                own["optimizer"].step()
                own["optimizer"].zero_grad()
            write(
                {
                    "task": name,
                    "step": min(done + bench.pick(250, 10), total),
                    "val_loss": measured(own["model"]),
                }
            )
        if time.monotonic() > deadline:
            return


# ---- the clock ----


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name() if device.type == "cuda" else "cpu"


def main() -> int:
    """Exit code 1: a section failed or a check does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "bench/results/gpu")))
    parser.add_argument("--seconds", type=float, default=470)
    parser.add_argument("--shakespeare", type=Path, metavar="TEXT")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("gpu-check: torch sees no GPU; --dry-run runs every line on the CPU", file=sys.stderr)
        return 2
    bench = Bench(torch.device("cpu" if options.dry_run else "cuda"), options.dry_run)
    deadline = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / ("shakespeare.jsonl" if options.shakespeare else "check.jsonl")
    wrong: list[str] = []
    with file.open("w", encoding="utf-8") as rows:

        def write(row: Row) -> None:
            rows.write(json.dumps(row) + "\n")
            rows.flush()
            print(json.dumps(row), flush=True)

        write({"device": name_of(bench.device), "torch": torch.__version__, "dry_run": bench.dry})
        if options.shakespeare:
            shakespeare(bench, options.shakespeare, deadline, write)
            return 0
        for name, section in SECTIONS.items():
            left = deadline - time.monotonic()
            if left < 20 and not bench.dry:
                write({"section": name, "left_out": f"{left:.0f} s were left"})
                continue
            try:
                with nullcontext() if bench.device.type == "cpu" else torch.cuda.device(0):
                    for row in section(bench):
                        write({"section": name, **row})
                        if not row.get("ok", True):
                            wrong.append(f"{name}, {row['task']}")
            except Exception as error:
                traceback.print_exc()
                write({"section": name, "error": f"{type(error).__name__}: {error}"})
                wrong.append(name)
    for each in wrong:
        print(f"gpu-check: {each} does not hold", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
