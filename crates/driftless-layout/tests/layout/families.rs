//! Families: their parameters, the public configs, and the generic table.

use crate::configs::Sizes;
use crate::cover::index;
use crate::random::data_parallel;
use crate::rules;
use driftless_layout::{LayoutError, Model, ModelConfig, ParamMeta, RemapPlan, RolloutLayout, ServedDtypes};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn model(config: &str) -> Model {
    Model::new(ModelConfig::from_json(config).unwrap(), &ServedDtypes::default()).unwrap()
}

#[test]
fn each_family_has_its_own_parameters() {
    for family in ["qwen3", "qwen2", "llama"] {
        for sizes in [Sizes::dense(), Sizes { tied: true, ..Sizes::dense() }] {
            let sizes = Sizes { family, ..sizes };
            let model = model(&sizes.json().to_string());
            let mut expected = rules::registration(&sizes);
            expected.sort_unstable();
            let names: Vec<_> = model.params().iter().map(|meta| meta.fqn.to_string()).collect();
            assert_eq!(names, expected, "{family}");
        }
    }
    let biased = model(&Sizes { family: "qwen2", ..Sizes::dense() }.json().to_string());
    let shape = |name: &str| biased.param(name).unwrap().shape.extents().to_vec();
    assert_eq!(shape("model.layers.3.self_attn.q_proj.bias"), [8 * 4]);
    assert_eq!(shape("model.layers.3.self_attn.v_proj.bias"), [2 * 4]);
}

#[test]
fn llama_configs_without_grouped_queries_have_as_many_keys_as_queries() {
    let mut json = Sizes { family: "llama", ..Sizes::dense() }.json();
    json.as_object_mut().unwrap().remove("num_key_value_heads");
    assert_eq!(ModelConfig::from_json(&json.to_string()).unwrap().key_value_heads(), 8);
}

#[test]
fn public_configs_have_the_published_number_of_parameters() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/models");
    let published = BTreeMap::from([
        ("llama-3.1-8b.json", 8_030_261_248),
        ("qwen2.5-7b.json", 7_615_616_512),
        ("qwen3-0.6b.json", 596_049_920),
        ("qwen3-30b-a3b.json", 30_532_122_624),
        ("qwen3-8b.json", 8_190_735_360),
    ]);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let elements: u64 =
            model(&fs::read_to_string(&path).unwrap()).params().iter().map(ParamMeta::elements).sum();
        found.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), elements);
    }
    assert!(found.iter().map(|(name, elements)| (name.as_str(), *elements)).eq(published));
}

/// A table with each kind of entry: 10 rows are padded to 12.
fn table() -> Value {
    json!({
        "model_type": "a_new_decoder",
        "num_hidden_layers": 2,
        "generic_tensors": [
            {"name": "embed.weight", "shape": [10, 3], "split": 0, "pad_to": 4},
            {"name": "layers.{layer}.in.weight", "shape": [8, 3], "split": 0},
            {"name": "layers.{layer}.in.bias", "shape": [8], "split": 0},
            {"name": "layers.{layer}.out.weight", "shape": [3, 8], "split": 1},
            {"name": "norm.weight", "shape": [3]},
        ],
    })
}

fn generic_plan(trainer: &str, rollout: &str) -> Result<RemapPlan, LayoutError> {
    let rollouts: [RolloutLayout; 1] = [rollout.parse().unwrap()];
    RemapPlan::compile(&model(&table().to_string()), &trainer.parse().unwrap(), &rollouts)
}

/// How a table cuts one tensor: dimension and padding; `None`: every rank holds the whole.
type Cut = Option<(usize, u64)>;

/// Where a rank of `tp` holds element `at` (one index per dimension) of a tensor: (rank, flat index).
fn generic_place(shape: &[u64], cut: Cut, tp: u64, at: &[u64]) -> Option<(u64, u64)> {
    let (dimension, pad_to) = cut?;
    let share = shape[dimension].div_ceil(pad_to) * pad_to / tp;
    let mut local = at.to_vec();
    local[dimension] %= share;
    let mut local_shape = shape.to_vec();
    local_shape[dimension] = share;
    let flat = local.iter().zip(&local_shape).fold(0, |flat, (index, extent)| flat * extent + index);
    Some((at[dimension] / share, flat))
}

#[test]
fn ly2_generic_tensors_are_cut_as_the_table_says() {
    let cuts = BTreeMap::from([
        ("embed.weight", Some((0, 4))),
        ("in.weight", Some((0, 1))),
        ("in.bias", Some((0, 1))),
        ("out.weight", Some((1, 1))),
        ("norm.weight", None),
    ]);
    let cut = |name: &str| *cuts.iter().find(|(end, _)| name.ends_with(*end)).unwrap().1;
    for trainer in
        ["hf", "fsdp:world=3", "hsdp:world=4,replicas=2", "deepspeed:world=3", "deepspeed:world=5,stage=3"]
    {
        for (engine, tp) in [("vllm", 1), ("vllm", 2), ("sglang", 4)] {
            let plan = generic_plan(trainer, &format!("{engine}:tp={tp}")).unwrap();
            // 30 + 2 * (24 + 8 + 24) elements once, and the norm with every rank.
            assert_eq!(check_generic(&plan, tp, &cut), 142 + 3 * tp);
        }
    }
    assert!(generic_plan("fsdp:world=2", "hf").is_ok());
}

/// Every element of every fragment, against the place that the table gives it; returns how many places there are.
fn check_generic(plan: &RemapPlan, tp: u64, cut: &dyn Fn(&str) -> Cut) -> u64 {
    let mut written = BTreeMap::new();
    let edges = plan.senders().iter().flat_map(|sender| &sender.edges);
    for (receiver, fragment) in
        edges.flat_map(|edge| edge.fragments.iter().map(move |fragment| (edge.receiver, fragment)))
    {
        let meta = plan.param(fragment.param);
        let tensor = &plan.receiver(receiver).tensors[index(fragment.dst_tensor.into())];
        assert_eq!(tensor.name, meta.fqn.as_str());
        for at in 0..fragment.elements() {
            let (row, col) = (at / fragment.canonical.cols, at % fragment.canonical.cols);
            let (r, c) = (fragment.canonical.row + row, fragment.canonical.col + col);
            let flat = fragment.dst_offset + row * fragment.dst_row_stride + col;
            let shape = meta.shape.extents();
            let indices = if shape.len() == 1 { vec![c] } else { vec![r, c] };
            let expected = generic_place(shape, cut(&tensor.name), tp, &indices)
                .unwrap_or_else(|| (receiver.rank.into(), r * meta.cols() + c));
            assert_eq!((u64::from(receiver.rank), flat), expected, "{} ({r}, {c})", tensor.name);
            assert!(flat < tensor.shape.elements().unwrap());
            *written.entry((receiver, fragment.dst_tensor, flat)).or_insert(0) += 1;
        }
    }
    assert!(written.values().all(|&times| times == 1), "LY-2");
    written.len() as u64
}

/// One or two extents, and a cut of one of them.
fn entry() -> impl Strategy<Value = (Vec<u64>, Cut)> {
    let shape = prop::collection::vec(prop::sample::select(vec![1u64, 2, 4, 4, 8, 12, 3]), 1..=2);
    let pad_to = prop::sample::select(vec![1u64, 1, 4, 8]);
    (shape, prop::option::weighted(0.8, 0usize..2), pad_to).prop_map(|(shape, dimension, pad_to)| {
        let dimension = dimension.map(|dimension| dimension.min(shape.len() - 1));
        let cut = dimension.map(|dimension| (dimension, if dimension == 0 { pad_to } else { 1 }));
        (shape, cut)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn ly1_ly2_ly4_random_tables_arrive_or_are_refused(
        entries in prop::collection::vec(entry(), 1..5), trainer in data_parallel(),
        tp in prop::sample::select(vec![1u64, 2, 2, 4]),
    ) {
        let tensor = |(number, (shape, cut)): (usize, &(Vec<u64>, Cut))| {
            let mut json = json!({"name": format!("t{number}"), "shape": shape});
            if let Some((dimension, pad_to)) = cut {
                json["split"] = (*dimension).into();
                json["pad_to"] = (*pad_to).into();
            }
            json
        };
        let tensors: Vec<_> = entries.iter().enumerate().map(tensor).collect();
        let model = model(&json!({ "generic_tensors": tensors }).to_string());
        let rollouts: [RolloutLayout; 1] = [format!("vllm:tp={tp}").parse().unwrap()];
        let plan = RemapPlan::compile(&model, &trainer.parse().unwrap(), &rollouts);
        let fits = entries.iter().all(|(shape, cut)| {
            cut.is_none_or(|(dimension, pad_to)| shape[dimension].next_multiple_of(pad_to).is_multiple_of(tp))
        });
        if !fits {
            let is_misfit = matches!(plan, Err(LayoutError::AxisMisfit { axis: "tp", .. }));
            prop_assert!(is_misfit);
            return Ok(());
        }
        let cut = |name: &str| entries[name[1..].parse::<usize>().unwrap()].1;
        let elements = |(shape, cut): &(Vec<u64>, Cut)| {
            shape.iter().product::<u64>() * if cut.is_none() { tp } else { 1 }
        };
        let held: u64 = entries.iter().map(elements).sum();
        prop_assert_eq!(check_generic(&plan.unwrap(), tp, &cut), held);
    }
}

#[test]
fn the_documented_table_is_one() {
    let (_, rest) = include_str!("../../LAYOUTS.md").split_once("```json").unwrap();
    let model = model(rest.split_once("```").unwrap().0);
    let names: Vec<_> = model.params().iter().map(|meta| meta.fqn.as_str()).collect();
    let layer = |layer: u32, name: &str| format!("model.layers.{layer}.self_attn.{name}.weight");
    let expected = [
        "model.embed_tokens.weight".to_owned(),
        layer(0, "o_proj"),
        layer(0, "q_proj"),
        layer(1, "o_proj"),
        layer(1, "q_proj"),
        "model.norm.weight".to_owned(),
    ];
    assert_eq!(names, expected);
}

#[test]
fn ly4_generic_tensors_have_no_layout_that_needs_roles() {
    let error = generic_plan("megatron:tp=2", "hf").unwrap_err();
    assert!(matches!(&error, LayoutError::NoConverter { layout } if layout == "megatron:tp=2"), "{error}");
    for (rollout, axis, expected) in [
        ("vllm:tp=3", "tp", "the padded first dimension of layers.0.in.weight = 8"),
        ("vllm:tp=6", "tp", "the padded first dimension of layers.0.in.weight = 8"),
        ("vllm:tp=8", "tp", "the padded first dimension of embed.weight = 12"),
        ("vllm:pp=2", "pp", "no stages"),
        ("sglang:tp=2,ep=2", "ep", "no experts"),
    ] {
        let error = generic_plan("hf", rollout).unwrap_err();
        assert!(matches!(&error, LayoutError::AxisMisfit { axis: found, .. } if *found == axis), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn ly4_tables_that_describe_no_model_are_refused_by_tensor() {
    let cases = [
        (json!("x"), "a list of"),
        (json!([]), "1 to 1048576 tensors"),
        (json!([3]), "a name in every entry"),
        (json!([{"shape": [3]}]), "a name in every entry"),
        (json!([{"name": "a"}]), "tensor a: found no shape"),
        (json!([{"name": "a", "shape": [0]}]), "tensor a: found shape [0]"),
        (json!([{"name": "a", "shape": [2, 2, 2]}]), "tensor a: found shape [2,2,2]"),
        (json!([{"name": "a", "shape": [1u64 << 40]}]), "tensor a: found shape"),
        (json!([{"name": "a", "shape": [2], "split": 1}]), "tensor a: found split 1"),
        (json!([{"name": "a", "shape": [2], "split": "rows"}]), "tensor a: found split \"rows\""),
        (json!([{"name": "a", "shape": [2], "pad_to": 0}]), "tensor a: found pad_to 0"),
        (json!([{"name": "a", "shape": [2], "spilt": 0}]), "tensor a: found spilt"),
        (json!([{"name": "a", "shape": [2]}, {"name": "a", "shape": [2]}]), "tensor a: found twice"),
    ];
    for (tensors, named) in cases {
        let mut json = table();
        json["generic_tensors"] = tensors;
        let error = ModelConfig::from_json(&json.to_string()).unwrap_err();
        assert!(
            matches!(error, LayoutError::ConfigKey { .. }) && error.to_string().contains(named),
            "{error}"
        );
    }
    let mut json = table();
    json["num_hidden_layers"] = Value::Null;
    let error = ModelConfig::from_json(&json.to_string()).unwrap_err().to_string();
    assert!(error.contains("num_hidden_layers"), "{error}");
    json["num_hidden_layers"] = 2.into();
    json["quantization_config"] = json!({"bits": 4});
    let error = ModelConfig::from_json(&json.to_string()).unwrap_err().to_string();
    assert!(error.contains("quantized"), "{error}");
}
