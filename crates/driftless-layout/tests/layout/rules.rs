//! Where each element is, one element at a time: the rules of trainers and engines in closed form.

use crate::configs::Sizes;

/// A canonical element: parameter name, row and column (a 1-D parameter is one row).
pub(crate) type Element = (String, u64, u64);

/// The mesh of a Megatron trainer.
#[derive(Clone, Debug)]
pub(crate) struct Mesh {
    pub(crate) tp: u64,
    pub(crate) pp: u64,
    pub(crate) dp: u64,
    pub(crate) ep: u64,
    pub(crate) etp: u64,
    /// Layers of each part, in order of the layers.
    pub(crate) parts: Vec<u64>,
}

/// What lies at flat index `at` of a Megatron rank's local tensor; `None` is padding.
pub(crate) fn megatron(sizes: &Sizes, mesh: &Mesh, rank: u64, tensor: &str, at: u64) -> Option<Element> {
    let (t, stage) = (rank % mesh.tp, rank / (mesh.tp * mesh.dp));
    let (chunk, tensor) = match tensor.strip_prefix("model").and_then(|rest| rest.split_once('.')) {
        Some((chunk, rest)) => (chunk.parse().unwrap(), rest),
        None => (0, tensor),
    };
    let part = chunk * mesh.pp + stage;
    let hidden = sizes.hidden;
    if let Some(rest) = tensor.strip_prefix("decoder.layers.") {
        let (local, rest) = rest.split_once('.').unwrap();
        let before: u64 = mesh.parts[..usize::try_from(part).unwrap()].iter().sum();
        return Some(megatron_layer(sizes, mesh, rank, before + local.parse::<u64>().unwrap(), rest, at));
    }
    let (row, col) = (at / hidden, at % hidden);
    let vocab_row = |name: &str| {
        let padded = sizes.vocab.div_ceil(128 * mesh.tp) * 128 * mesh.tp;
        let global = t * (padded / mesh.tp) + row;
        (global < sizes.vocab).then(|| (name.to_owned(), global, col))
    };
    match tensor {
        "embedding.word_embeddings.weight" => vocab_row("model.embed_tokens.weight"),
        "output_layer.weight" if sizes.tied => vocab_row("model.embed_tokens.weight"),
        "output_layer.weight" => vocab_row("lm_head.weight"),
        "decoder.final_layernorm.weight" => Some(("model.norm.weight".into(), 0, at)),
        other => panic!("no rule for {other}"),
    }
}

/// Row `row` of the fused qkv of rank `t`: which projection, and which of its rows.
fn fused_row(sizes: &Sizes, tp: u64, t: u64, row: u64) -> (&'static str, u64) {
    let (g, d) = (sizes.heads / sizes.kv_heads, sizes.head_dim);
    let group_rows = (g + 2) * d;
    let global = t * (sizes.kv_heads * group_rows / tp) + row;
    let (i, o) = (global / group_rows, global % group_rows);
    if o < g * d {
        ("q_proj", i * g * d + o)
    } else if o < (g + 1) * d {
        ("k_proj", i * d + o - g * d)
    } else {
        ("v_proj", i * d + o - (g + 1) * d)
    }
}

fn megatron_layer(sizes: &Sizes, mesh: &Mesh, rank: u64, layer: u64, tensor: &str, at: u64) -> Element {
    let (t, tp, hidden) = (rank % mesh.tp, mesh.tp, sizes.hidden);
    let hf = |name: &str| format!("model.layers.{layer}.{name}.weight");
    let (row, col) = (at / hidden, at % hidden);
    let columns = |name: &str, width: u64, of: u64, index: u64| {
        (hf(name), at / (width / of), index * (width / of) + at % (width / of))
    };
    match tensor {
        "self_attention.linear_qkv.layer_norm_weight" => (hf("input_layernorm"), 0, at),
        "self_attention.q_layernorm.weight" => (hf("self_attn.q_norm"), 0, at),
        "self_attention.k_layernorm.weight" => (hf("self_attn.k_norm"), 0, at),
        "mlp.linear_fc1.layer_norm_weight" | "pre_mlp_layernorm.weight" => {
            (hf("post_attention_layernorm"), 0, at)
        }
        "self_attention.linear_qkv.weight" => {
            let (name, row) = fused_row(sizes, tp, t, row);
            (hf(&format!("self_attn.{name}")), row, col)
        }
        "self_attention.linear_qkv.bias" => {
            let (name, row) = fused_row(sizes, tp, t, at);
            (format!("model.layers.{layer}.self_attn.{name}.bias"), 0, row)
        }
        "self_attention.linear_proj.weight" => {
            columns("self_attn.o_proj", sizes.heads * sizes.head_dim, tp, t)
        }
        "mlp.router.weight" => (hf("mlp.gate"), row, col),
        "mlp.linear_fc1.weight" => {
            let share = sizes.intermediate / tp;
            let name = if row < share { "mlp.gate_proj" } else { "mlp.up_proj" };
            (hf(name), t * share + row % share, col)
        }
        "mlp.linear_fc2.weight" => columns("mlp.down_proj", sizes.intermediate, tp, t),
        other => {
            let experts = sizes.experts.as_ref().unwrap();
            let in_stage = rank % (tp * mesh.dp);
            let (inner, ep_rank) = (in_stage % mesh.etp, in_stage / mesh.etp % mesh.ep);
            let expert = |index: &str| ep_rank * (experts.count / mesh.ep) + index.parse::<u64>().unwrap();
            if let Some(index) = other.strip_prefix("mlp.experts.linear_fc1.weight") {
                let share = experts.intermediate / mesh.etp;
                let name = if row < share { "gate_proj" } else { "up_proj" };
                let fqn = hf(&format!("mlp.experts.{}.{name}", expert(index)));
                (fqn, inner * share + row % share, col)
            } else {
                let index = other.strip_prefix("mlp.experts.linear_fc2.weight").unwrap();
                let name = format!("mlp.experts.{}.down_proj", expert(index));
                columns(&name, experts.intermediate, mesh.etp, inner)
            }
        }
    }
}

/// All parameters in the order in which the Hugging Face modules register them.
pub(crate) fn registration(sizes: &Sizes) -> Vec<String> {
    let mut names = vec!["model.embed_tokens.weight".to_owned()];
    for layer in 0..sizes.layers {
        let mut add = |name: &str| names.push(format!("model.layers.{layer}.{name}"));
        for projection in ["q_proj", "k_proj", "v_proj"] {
            add(&format!("self_attn.{projection}.weight"));
            if sizes.family == "qwen2" {
                add(&format!("self_attn.{projection}.bias"));
            }
        }
        add("self_attn.o_proj.weight");
        if sizes.family == "qwen3" {
            add("self_attn.q_norm.weight");
            add("self_attn.k_norm.weight");
        }
        if sizes.is_expert_layer(layer) {
            add("mlp.gate.weight");
            for expert in 0..sizes.experts.as_ref().unwrap().count {
                for projection in ["gate_proj", "up_proj", "down_proj"] {
                    add(&format!("mlp.experts.{expert}.{projection}.weight"));
                }
            }
        } else {
            for projection in ["gate_proj", "up_proj", "down_proj"] {
                add(&format!("mlp.{projection}.weight"));
            }
        }
        add("input_layernorm.weight");
        add("post_attention_layernorm.weight");
    }
    names.push("model.norm.weight".into());
    if !sizes.tied {
        names.push("lm_head.weight".into());
    }
    names
}

/// An engine's mesh, and what it does in its own way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine {
    pub(crate) name: &'static str,
    pub(crate) tp: u64,
    pub(crate) pp: u64,
    pub(crate) ep: u64,
    pub(crate) round_robin: bool,
    pub(crate) swapped: bool,
}

impl Engine {
    /// The stage of a layer, by handing layers out one at a time.
    fn stage(&self, layers: u64, layer: u64) -> u64 {
        let mut sizes = vec![layers / self.pp; usize::try_from(self.pp).unwrap()];
        for more in 0..layers % self.pp {
            let from_end = if self.name == "vllm" { more + 2 } else { more + 1 };
            let stage = sizes.len() - usize::try_from(from_end).unwrap();
            sizes[stage] += 1;
        }
        let mut end = 0;
        (0..)
            .zip(sizes)
            .find(|(_, size)| {
                end += size;
                layer < end
            })
            .unwrap()
            .0
    }

    /// Which expert parallel rank has an expert, and as which of its own.
    fn expert(&self, count: u64, expert: u64) -> (u64, u64) {
        if self.round_robin {
            return (expert % self.ep, expert / self.ep);
        }
        // The first `count % ep` ranks have one more.
        let mut first = 0;
        for rank in 0..self.ep {
            let size = count / self.ep + u64::from(rank < count % self.ep);
            if expert < first + size {
                return (rank, expert - first);
            }
            first += size;
        }
        panic!("expert {expert} of {count}")
    }
}

/// Where an engine keeps one element: (rank, tensor, flat index).
pub(crate) fn engine(sizes: &Sizes, engine: Engine, element: &Element) -> Vec<(u64, String, u64)> {
    let parts: Vec<&str> = element.0.split('.').collect();
    let Engine { tp, pp, .. } = engine;
    let places = engine_stage(sizes, engine, element, &parts);
    let on = |stage: u64, places: &[(u64, String, u64)]| -> Vec<_> {
        places.iter().map(|(rank, tensor, at)| (stage * tp + rank, tensor.clone(), *at)).collect()
    };
    match parts[..] {
        ["lm_head", ..] | ["model", "norm", _] => on(pp - 1, &places),
        ["model", "layers", layer, ..] => on(engine.stage(sizes.layers, layer.parse().unwrap()), &places),
        _ => {
            let mut copies = on(0, &places);
            if sizes.tied && pp > 1 {
                let name = if engine.name == "vllm" { "model.embed_tokens.weight" } else { "lm_head.weight" };
                copies.extend(on(pp - 1, &places).into_iter().map(|(rank, _, at)| (rank, name.into(), at)));
            }
            copies
        }
    }
}

fn engine_stage(sizes: &Sizes, engine: Engine, element: &Element, parts: &[&str]) -> Vec<(u64, String, u64)> {
    let (fqn, kind) = (element.0.as_str(), parts[parts.len() - 1]);
    let tp = engine.tp;
    // A bias is a projection whose rows are one element wide.
    let (h, r, c) = match kind {
        "bias" => (1, element.2, 0),
        _ => (sizes.hidden, element.1, element.2),
    };
    let d = sizes.head_dim;
    let nq = sizes.heads / tp;
    let (nk, rep) = if tp >= sizes.kv_heads { (1, tp / sizes.kv_heads) } else { (sizes.kv_heads / tp, 1) };
    let at_rank = |s: u64, tensor: String, at: u64| vec![(s, tensor, at)];
    let in_layer = |tensor: &str| format!("model.layers.{}.{tensor}", parts[2]);
    let qkv = || in_layer(&format!("self_attn.qkv_proj.{kind}"));
    let kv = |first: u64| {
        let (j, l) = (r / (nk * d), r % (nk * d));
        (0..rep).map(|i| (j * rep + i, qkv(), (first + l) * h + c)).collect()
    };
    let columns = |tensor: &str, width: u64| {
        at_rank(c / (width / tp), in_layer(tensor), r * (width / tp) + c % (width / tp))
    };
    match (parts[parts.len() - 2], parts.contains(&"experts")) {
        ("embed_tokens" | "lm_head", _) => {
            let rows = sizes.vocab.div_ceil(64) * 64 / tp;
            at_rank(r / rows, fqn.into(), r % rows * h + c)
        }
        ("q_proj", _) => at_rank(r / (nq * d), qkv(), r % (nq * d) * h + c),
        ("k_proj", _) => kv(nq * d),
        ("v_proj", _) => kv((nq + nk) * d),
        ("o_proj", _) => columns("self_attn.o_proj.weight", sizes.heads * d),
        ("down_proj", false) => columns("mlp.down_proj.weight", sizes.intermediate),
        (name @ ("gate_proj" | "up_proj"), false) => {
            let share = sizes.intermediate / tp;
            let first = if name == "up_proj" { share } else { 0 };
            at_rank(r / share, in_layer("mlp.gate_up_proj.weight"), (first + r % share) * h + c)
        }
        (name, true) => {
            let experts = sizes.experts.as_ref().unwrap();
            let moe_tp = tp / engine.ep;
            let it = experts.intermediate / moe_tp;
            let (ep_rank, el) = engine.expert(experts.count, parts[5].parse().unwrap());
            let second = if engine.swapped { "gate_proj" } else { "up_proj" };
            let first = if name == second { it } else { 0 };
            let (inner, tensor, at) = match name {
                "down_proj" => (c, "mlp.experts.w2_weight", (el * h + r) * it + c % it),
                _ => (r, "mlp.experts.w13_weight", (el * 2 * it + first + r % it) * h + c),
            };
            at_rank(ep_rank * moe_tp + inner / it, in_layer(tensor), at)
        }
        // Norms and routers: every rank.
        ("gate", _) => (0..tp).map(|s| (s, fqn.into(), r * h + c)).collect(),
        _ => (0..tp).map(|s| (s, fqn.into(), c)).collect(),
    }
}
