//! Engine layouts as text: what each engine understands, what it refuses by name, and the canonical form.

use super::{EngineMesh, ExpertPlacement, GateUpOrder, RolloutEngine, RolloutLayout};
use crate::error::LayoutError;
use crate::text::{self, Grammar, LayoutText, RefusedOption};
use std::fmt;
use std::str::FromStr;

const HF: Grammar = Grammar { axes: &[], options: &[], refused: &[QUANTIZATION, LORA] };
const REFUSED: &[RefusedOption] =
    &[RefusedOption { name: "dp", ..DP_ATTENTION }, DP_ATTENTION, EPLB, REDUNDANT, LORA, QUANTIZATION, DRAFT];
const VLLM: Grammar = Grammar { axes: &["tp", "pp", "ep"], options: &["placement", "w13"], refused: REFUSED };
const SGLANG: Grammar = Grammar { axes: &["tp", "pp", "ep"], options: &["w13"], refused: REFUSED };

const DP_ATTENTION: RefusedOption = RefusedOption {
    name: "dp_attention",
    feature: "engine data parallelism (DP attention)",
    needed: "a mesh in which attention and experts are cut over different ranks; for plain replicas give one rollout each",
};
const EPLB: RefusedOption = RefusedOption {
    name: "eplb",
    feature: "expert load balancing",
    needed: "maps of which expert lives where, that change while engines run",
};
const REDUNDANT: RefusedOption = RefusedOption {
    name: "redundant_experts",
    feature: "redundant experts",
    needed: "maps of which expert lives where, that change while engines run",
};
const LORA: RefusedOption = RefusedOption {
    name: "lora",
    feature: "a LoRA-extended vocabulary or adapter",
    needed: "a converter that merges adapters into the weights that engines serve",
};
const QUANTIZATION: RefusedOption = RefusedOption {
    name: "quantization",
    feature: "an engine with quantized weights",
    needed: "served dtypes other than BF16 and F32",
};
const DRAFT: RefusedOption = RefusedOption {
    name: "draft",
    feature: "an MTP or draft head",
    needed: "converters for the head's own layers",
};

/// The default first: the canonical text leaves it out.
const PLACEMENTS: [(&str, ExpertPlacement); 2] =
    [("linear", ExpertPlacement::Linear), ("round-robin", ExpertPlacement::RoundRobin)];
const ORDERS: [(&str, GateUpOrder); 2] =
    [("checkpoint", GateUpOrder::Checkpoint), ("swapped", GateUpOrder::Swapped)];

impl FromStr for RolloutLayout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let (engine, router) = match text::family(text) {
            "hf" => (RolloutEngine::Hf, LayoutText::parse(text, &HF)?.router),
            "vllm" => {
                let parsed = LayoutText::parse(text, &VLLM)?;
                let placement = parsed.choice("placement", &PLACEMENTS)?;
                (RolloutEngine::Vllm { mesh: mesh(&parsed)?, placement }, parsed.router)
            }
            "sglang" => {
                let parsed = LayoutText::parse(text, &SGLANG)?;
                (RolloutEngine::Sglang { mesh: mesh(&parsed)? }, parsed.router)
            }
            family => return Err(text::refused(text, format!("engine {family:?}"), "hf, vllm or sglang")),
        };
        Ok(Self { engine, router })
    }
}

fn mesh(parsed: &LayoutText<'_>) -> Result<EngineMesh, LayoutError> {
    let [tp, pp, ep] = ["tp", "pp", "ep"].map(|axis| parsed.axis(axis));
    Ok(EngineMesh { tp, pp, ep, gate_up: parsed.choice("w13", &ORDERS)? })
}

impl fmt::Display for RolloutLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, mesh, placement) = match self.engine {
            RolloutEngine::Hf => return text::write(f, "hf", &[], [], self.router),
            RolloutEngine::Vllm { mesh, placement } => ("vllm", mesh, placement),
            RolloutEngine::Sglang { mesh } => ("sglang", mesh, ExpertPlacement::Linear),
        };
        let axes = [("tp", mesh.tp), ("pp", mesh.pp), ("ep", mesh.ep)];
        let options = [word("placement", &PLACEMENTS, placement), word("w13", &ORDERS, mesh.gate_up)];
        text::write(f, family, &axes, options.into_iter().flatten(), self.router)
    }
}

/// An option as text, if it is not the default.
fn word<T: PartialEq>(name: &str, words: &[(&str, T)], chosen: T) -> Option<String> {
    let word = words.iter().skip(1).find(|(_, meaning)| *meaning == chosen);
    word.map(|(word, _)| format!("{name}={word}"))
}
