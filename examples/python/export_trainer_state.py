"""Write the state of a PyTorch Adam or AdamW as a file that `driftless sync` reads.

    from export_trainer_state import export_policy, export_trainer_state

    export_policy("run", step, model.named_parameters())       # once, before the first recorded step
    optimizer.step()
    export_trainer_state("run", optimizer, model.named_parameters())  # before a scheduler changes the learning rate

Parameters are the FP32 masters under their Hugging Face names. Put the model's config.json into the folder, then:

    driftless sync run --trainer hf --rollout vllm:tp=2

`python export_trainer_state.py DIR` writes a whole such folder for a toy model. Needs torch and safetensors.
"""

import json
import os
import sys

import torch
from safetensors.torch import save_file

MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")  # the last of them only with amsgrad


def export_trainer_state(folder, optimizer, named_parameters, family="auto"):
    """Masters, moments and hyperparameters right after a step. Returns the number of the step."""
    names = {parameter: name for name, parameter in named_parameters}
    tensors, groups = {}, {}
    for group in optimizer.param_groups:
        hyper = dict(zip(("beta1", "beta2"), map(float, group["betas"])))
        hyper |= {key: float(group[key]) for key in ("lr", "eps", "weight_decay")}
        for parameter in group["params"]:
            name, state = names[parameter], optimizer.state.get(parameter, {})
            if parameter.dtype != torch.float32:
                raise TypeError(f"{name}: found {parameter.dtype}, expected an FP32 master")
            tensors[name] = parameter.detach().cpu().contiguous()
            for key in MOMENTS[: 3 if group.get("amsgrad") else 2]:  # without a gradient there was no step: zeros
                moment = state[key] if key in state else torch.zeros_like(parameter)
                tensors[f"{name}.{key}"] = moment.detach().cpu().contiguous()
            groups[name] = dict(hyper, step=int(state.get("step", 0)))
    first = optimizer.param_groups[0]
    default = max(groups.values(), key=lambda values: values["step"])
    metadata = {key: repr(value) for key, value in default.items()}
    for name, values in groups.items():  # what a parameter group has of its own
        metadata |= {f"{key}@{name}": repr(value) for key, value in values.items() if value != default[key]}
    decoupled = isinstance(optimizer, torch.optim.AdamW) or first.get("decoupled_weight_decay", False)
    metadata |= dict(optimizer="AdamW" if decoupled else "Adam", family=family)
    metadata |= {key: str(bool(first.get(key, False))).lower() for key in ("amsgrad", "maximize")}
    path = os.path.join(folder, f"trainer-step-{default['step']:04d}.safetensors")
    save_file(tensors, path, metadata)
    return default["step"]


def export_policy(folder, step, named_parameters):
    """The weights that rollouts serve at `step`: what they start from, or what a sync is compared with."""
    tensors = {name: p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in named_parameters}
    save_file(tensors, os.path.join(folder, f"policy-step-{step:04d}.safetensors"))


def main(folder, steps=3):
    """A toy model whose tensors are cut by a table, as no model type of it is known."""
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Linear(96, 64))
    weights, biases = ([p for p in model.parameters() if p.dim() == d] for d in (2, 1))
    groups = [dict(params=weights), dict(params=biases, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, weight_decay=0.1)
    table = [dict(name=name, shape=list(p.shape), split=0) for name, p in model.named_parameters()]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(dict(num_hidden_layers=1, generic_tensors=table), file)
    export_policy(folder, 0, model.named_parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        step = export_trainer_state(folder, optimizer, model.named_parameters())
        export_policy(folder, step, model.named_parameters())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run")
