//! Trainer layouts as text: what each family understands, what it refuses by name, and the canonical form.

use super::{MegatronMesh, MegatronOptimizer, TrainerKind, TrainerLayout, ZeroGroups, ZeroStage};
use crate::error::LayoutError;
use crate::text::{self, Grammar, LayoutText, RefusedOption};
use driftless_types::Dtype;
use std::fmt;
use std::str::FromStr;

const FAMILIES: &str = "hf, megatron, fsdp, hsdp or deepspeed";

const HF: Grammar = Grammar { axes: &[], options: &[], refused: &[MASTERS] };
const MEGATRON: Grammar = Grammar {
    axes: &["tp", "pp", "vpp", "dp", "ep", "etp"],
    options: &["layers", "bucket", "zero"],
    refused: &[MASTERS, INSTANCES, CONTEXT, LORA, MTP],
};
const FSDP: Grammar =
    Grammar { axes: &["world"], options: &[], refused: &[MASTERS, FSDP_TP, FSDP_PP, FSDP_EP, LORA] };
const HSDP: Grammar = Grammar { axes: &["world", "replicas"], ..FSDP };
const DEEPSPEED: Grammar = Grammar {
    axes: &["world"],
    options: &["stage", "groups"],
    refused: &[MASTERS, DEEPSPEED_TP, DEEPSPEED_PP, DEEPSPEED_EP, LORA],
};

const MASTERS: RefusedOption = RefusedOption {
    name: "masters",
    feature: "a 16-bit master weight",
    needed: "FP32 masters, or a detector that joins 16-bit weights with their remainders",
};
const INSTANCES: RefusedOption = RefusedOption {
    name: "instances",
    feature: "more than one distributed optimizer instance",
    needed: "buffers that are cut over part of the data parallel group",
};
const CONTEXT: RefusedOption = RefusedOption {
    name: "cp",
    feature: "a context parallel axis of its own",
    needed: "nothing but dp=, into which context parallel ranks count",
};
const LORA: RefusedOption = RefusedOption {
    name: "lora",
    feature: "a LoRA adapter",
    needed: "a converter that merges adapters into the weights that engines serve",
};
const MTP: RefusedOption = RefusedOption {
    name: "mtp",
    feature: "an MTP or draft head",
    needed: "converters for the head's own layers",
};
const FSDP_TP: RefusedOption = RefusedOption {
    name: "tp",
    feature: "FSDP mixed with tensor parallelism",
    needed: "placements with two cuts per parameter",
};
const FSDP_PP: RefusedOption = RefusedOption {
    name: "pp",
    feature: "FSDP mixed with pipeline parallelism",
    needed: "a table of the layers of each stage",
};
const FSDP_EP: RefusedOption = RefusedOption {
    name: "ep",
    feature: "FSDP mixed with expert parallelism",
    needed: "placements with two cuts per parameter",
};
const DEEPSPEED_TP: RefusedOption = RefusedOption {
    name: "tp",
    feature: "DeepSpeed mixed with tensor parallelism",
    needed: "a table of the dimension that each tensor is cut along",
};
const DEEPSPEED_PP: RefusedOption = RefusedOption {
    name: "pp",
    feature: "DeepSpeed mixed with pipeline parallelism",
    needed: "a table of the layers of each stage",
};
const DEEPSPEED_EP: RefusedOption = RefusedOption {
    name: "ep",
    feature: "DeepSpeed mixed with expert parallelism",
    needed: "parameter groups that are cut over part of the ranks",
};

impl FromStr for TrainerLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let (kind, router) = match text::family(text) {
            "hf" => (TrainerKind::Hf, LayoutText::parse(text, &HF)?.router),
            "megatron" => megatron(text)?,
            "fsdp" => {
                let parsed = LayoutText::parse(text, &FSDP)?;
                (TrainerKind::Fsdp { world: parsed.axis("world") }, parsed.router)
            }
            "hsdp" => {
                let parsed = LayoutText::parse(text, &HSDP)?;
                let [world, replicas] = ["world", "replicas"].map(|axis| parsed.axis(axis));
                (TrainerKind::Hsdp { world, replicas }, parsed.router)
            }
            "deepspeed" => deepspeed(text)?,
            family => return Err(text::refused(text, format!("trainer {family:?}"), FAMILIES)),
        };
        Ok(Self { kind, router })
    }
}

fn megatron(text: &str) -> Result<(TrainerKind, Option<Dtype>), LayoutError> {
    let parsed = LayoutText::parse(text, &MEGATRON)?;
    let [tp, pp, vpp, dp, ep, etp] = ["tp", "pp", "vpp", "dp", "ep", "etp"].map(|axis| parsed.axis(axis));
    let bucket_elements = parsed.count("bucket")?;
    let optimizer = parsed.choice(
        "zero",
        &[("1", MegatronOptimizer::Distributed { bucket_elements }), ("0", MegatronOptimizer::Replicated)],
    )?;
    if optimizer == MegatronOptimizer::Replicated && parsed.has("bucket") {
        return Err(text::refused(text, "bucket with zero=0", "buckets only of a distributed optimizer"));
    }
    let mesh = MegatronMesh { tp, pp, vpp, dp, ep, etp, layers: parsed.sum("layers")?, optimizer };
    Ok((TrainerKind::Megatron(mesh), parsed.router))
}

fn deepspeed(text: &str) -> Result<(TrainerKind, Option<Dtype>), LayoutError> {
    let parsed = LayoutText::parse(text, &DEEPSPEED)?;
    let stages = [("1", ZeroStage::One), ("2", ZeroStage::Two), ("3", ZeroStage::Three)];
    let groups = [("1", ZeroGroups::One), ("2", ZeroGroups::Decay)];
    let kind = TrainerKind::DeepSpeed {
        world: parsed.axis("world"),
        stage: parsed.choice("stage", &stages)?,
        groups: parsed.choice("groups", &groups)?,
    };
    Ok((kind, parsed.router))
}

impl fmt::Display for TrainerLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TrainerKind::Hf => text::write(f, "hf", &[], [], self.router),
            TrainerKind::Megatron(mesh) => write_megatron(f, mesh, self.router),
            TrainerKind::Fsdp { world } => text::write(f, "fsdp", &[("world", *world)], [], self.router),
            TrainerKind::Hsdp { world, replicas } => {
                text::write(f, "hsdp", &[("world", *world), ("replicas", *replicas)], [], self.router)
            }
            TrainerKind::DeepSpeed { world, stage, groups } => {
                let stage = match stage {
                    ZeroStage::One => "stage=1",
                    ZeroStage::Two => "stage=2",
                    ZeroStage::Three => "stage=3",
                };
                let groups = (*groups == ZeroGroups::Decay).then_some("groups=2");
                let options = [Some(stage), groups].into_iter().flatten().map(Into::into);
                text::write(f, "deepspeed", &[("world", *world)], options, self.router)
            }
        }
    }
}

fn write_megatron(f: &mut fmt::Formatter<'_>, mesh: &MegatronMesh, router: Option<Dtype>) -> fmt::Result {
    let MegatronMesh { tp, pp, vpp, dp, ep, etp, layers, optimizer } = mesh;
    let axes = [("tp", *tp), ("pp", *pp), ("vpp", *vpp), ("dp", *dp), ("ep", *ep), ("etp", *etp)];
    let layers = layers.as_ref().map(|sizes| {
        let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
        format!("layers={}", sizes.join("+"))
    });
    let optimizer = match optimizer {
        MegatronOptimizer::Distributed { bucket_elements } => {
            bucket_elements.map(|elements| format!("bucket={elements}"))
        }
        MegatronOptimizer::Replicated => Some("zero=0".into()),
    };
    text::write(f, "megatron", &axes, [layers, optimizer].into_iter().flatten(), router)
}
