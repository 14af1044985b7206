//! Where each element is, one element at a time: the rules of trainers and engines in closed form.

use crate::configs::Sizes;

/// A canonical element: parameter name, row and column (a 1-D parameter is one row).
pub(crate) type Element = (String, u64, u64);

/// The mesh of a Megatron trainer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mesh {
    pub(crate) tp: u64,
    pub(crate) pp: u64,
    pub(crate) dp: u64,
    pub(crate) ep: u64,
}

/// What lies at flat index `at` of a Megatron rank's local tensor; `None` is padding.
pub(crate) fn megatron(sizes: &Sizes, mesh: Mesh, rank: u64, tensor: &str, at: u64) -> Option<Element> {
    let (t, stage) = (rank % mesh.tp, rank / (mesh.tp * mesh.dp));
    let hidden = sizes.hidden;
    let row_major = |width: u64| (at / width, at % width);
    if let Some(rest) = tensor.strip_prefix("decoder.layers.") {
        let (local, rest) = rest.split_once('.').unwrap();
        let layer = local.parse::<u64>().unwrap() + stage * (sizes.layers / mesh.pp);
        return Some(megatron_layer(sizes, mesh, rank, layer, rest, at));
    }
    let (row, col) = row_major(hidden);
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

fn megatron_layer(sizes: &Sizes, mesh: Mesh, rank: u64, layer: u64, tensor: &str, at: u64) -> Element {
    let (t, tp, hidden) = (rank % mesh.tp, mesh.tp, sizes.hidden);
    let hf = |name: &str| format!("model.layers.{layer}.{name}.weight");
    let (row, col) = (at / hidden, at % hidden);
    let columns =
        |name: &str, width: u64| (hf(name), at / (width / tp), t * (width / tp) + at % (width / tp));
    match tensor {
        "self_attention.linear_qkv.layer_norm_weight" => (hf("input_layernorm"), 0, at),
        "self_attention.q_layernorm.weight" => (hf("self_attn.q_norm"), 0, at),
        "self_attention.k_layernorm.weight" => (hf("self_attn.k_norm"), 0, at),
        "mlp.linear_fc1.layer_norm_weight" | "pre_mlp_layernorm.weight" => {
            (hf("post_attention_layernorm"), 0, at)
        }
        "self_attention.linear_qkv.weight" => {
            let (g, d) = (sizes.heads / sizes.kv_heads, sizes.head_dim);
            let group_rows = (g + 2) * d;
            let global = t * (sizes.kv_heads * group_rows / tp) + row;
            let (i, o) = (global / group_rows, global % group_rows);
            if o < g * d {
                (hf("self_attn.q_proj"), i * g * d + o, col)
            } else if o < (g + 1) * d {
                (hf("self_attn.k_proj"), i * d + o - g * d, col)
            } else {
                (hf("self_attn.v_proj"), i * d + o - (g + 1) * d, col)
            }
        }
        "self_attention.linear_proj.weight" => columns("self_attn.o_proj", sizes.heads * sizes.head_dim),
        "mlp.router.weight" => (hf("mlp.gate"), row, col),
        "mlp.linear_fc1.weight" => {
            let share = sizes.intermediate / tp;
            let name = if row < share { "mlp.gate_proj" } else { "mlp.up_proj" };
            (hf(name), t * share + row % share, col)
        }
        "mlp.linear_fc2.weight" => columns("mlp.down_proj", sizes.intermediate),
        other => {
            let experts = sizes.experts.as_ref().unwrap();
            let ep_rank = rank % (tp * mesh.dp) % mesh.ep;
            let expert = |index: &str| ep_rank * (experts.count / mesh.ep) + index.parse::<u64>().unwrap();
            if let Some(index) = other.strip_prefix("mlp.experts.linear_fc1.weight") {
                let name = if row < experts.intermediate { "gate_proj" } else { "up_proj" };
                (hf(&format!("mlp.experts.{}.{name}", expert(index))), row % experts.intermediate, col)
            } else {
                let index = other.strip_prefix("mlp.experts.linear_fc2.weight").unwrap();
                let (row, col) = (at / experts.intermediate, at % experts.intermediate);
                (hf(&format!("mlp.experts.{}.down_proj", expert(index))), row, col)
            }
        }
    }
}

/// Where an engine of `tp` ranks, in `ep` expert groups, keeps one element: (rank, tensor, flat index).
pub(crate) fn engine(sizes: &Sizes, tp: u64, ep: u64, element: &Element) -> Vec<(u64, String, u64)> {
    let (fqn, r, c) = (element.0.as_str(), element.1, element.2);
    let (h, d) = (sizes.hidden, sizes.head_dim);
    let nq = sizes.heads / tp;
    let (nk, rep) = if tp >= sizes.kv_heads { (1, tp / sizes.kv_heads) } else { (sizes.kv_heads / tp, 1) };
    let parts: Vec<&str> = fqn.split('.').collect();
    let at_rank = |s: u64, tensor: String, at: u64| vec![(s, tensor, at)];
    let in_layer = |tensor: &str| format!("model.layers.{}.{tensor}", parts[2]);
    let kv = |first: u64| {
        let (j, l) = (r / (nk * d), r % (nk * d));
        (0..rep).map(|i| (j * rep + i, in_layer("self_attn.qkv_proj.weight"), (first + l) * h + c)).collect()
    };
    let columns = |tensor: &str, width: u64| {
        at_rank(c / (width / tp), in_layer(tensor), r * (width / tp) + c % (width / tp))
    };
    match (parts[parts.len() - 2], parts.contains(&"experts")) {
        ("embed_tokens" | "lm_head", _) => {
            let rows = sizes.vocab.div_ceil(64) * 64 / tp;
            at_rank(r / rows, fqn.into(), r % rows * h + c)
        }
        ("q_proj", _) => {
            let at = r % (nq * d) * h + c;
            at_rank(r / (nq * d), in_layer("self_attn.qkv_proj.weight"), at)
        }
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
            let moe_tp = tp / ep;
            let it = experts.intermediate / moe_tp;
            let e: u64 = parts[5].parse().unwrap();
            let (ep_rank, el) = (e / (experts.count / ep), e % (experts.count / ep));
            let (inner, tensor, at) = match name {
                "down_proj" => (c, "mlp.experts.w2_weight", (el * h + r) * it + c % it),
                "gate_proj" => (r, "mlp.experts.w13_weight", (el * 2 * it + r % it) * h + c),
                _ => (r, "mlp.experts.w13_weight", (el * 2 * it + it + r % it) * h + c),
            };
            at_rank(ep_rank * moe_tp + inner / it, in_layer(tensor), at)
        }
        // Norms and routers: every rank.
        ("gate", _) => (0..tp).map(|s| (s, fqn.into(), r * h + c)).collect(),
        _ => (0..tp).map(|s| (s, fqn.into(), c)).collect(),
    }
}
