//! Single facts about plans: merging, cutting, digests, dtypes, and models at full size.

use crate::configs::{Case, ExpertSizes, Sizes, plan};
use driftless_layout::{
    Box2, Fragment, MAX_FRAGMENT_ELEMENTS, MAX_LOG_FRAGMENT_ELEMENTS, Model, RemapPlan, RolloutLayout,
    ServedDtypes, SourceRun,
};
use driftless_types::{Dtype, Fqn, ReceiverId, ReplicaId, SenderId};
use std::collections::{BTreeMap, BTreeSet};

fn receiver(replica: u32, rank: u32) -> ReceiverId {
    ReceiverId { replica: ReplicaId(replica), rank }
}

fn fragments_of<'a>(plan: &'a RemapPlan, sender: u32, to: ReceiverId, fqn: &str) -> Vec<&'a Fragment> {
    let edge = plan.edge(SenderId(sender), to).unwrap();
    edge.fragments.iter().filter(|fragment| plan.param(fragment.param).fqn.as_str() == fqn).collect()
}

#[test]
fn interleaved_query_groups_become_one_fragment_with_a_run_per_group() {
    // Two tensor parallel ranks with two groups each: (2 + 2) heads of 3 rows a group.
    let sizes = Sizes { heads: 8, kv_heads: 4, head_dim: 3, hidden: 5, layers: 1, ..Sizes::dense() };
    let plan = plan(&sizes, "megatron:tp=2", &["vllm:tp=1"]);
    let queries = fragments_of(&plan, 1, receiver(0, 0), "model.layers.0.self_attn.q_proj.weight");
    assert_eq!(queries.len(), 1);
    assert_eq!(queries[0].canonical, Box2::new(12, 12, 0, 5));
    assert_eq!((queries[0].dst_offset, queries[0].dst_row_stride), (12 * 5, 5));
    let tensor = queries[0].sources[0].tensor;
    let run = |src_row: u64, box_row| SourceRun {
        tensor,
        src_offset: src_row * 5,
        src_row_stride: 5,
        box_row,
        rows: 6,
    };
    assert_eq!(queries[0].sources, [run(0, 0), run(12, 6)]);
}

#[test]
fn a_range_that_ends_in_mid_row_keeps_its_partial_row_apart() {
    // One rank in three owns of each flat parameter what the cut leaves it: rows of 12 are cut in the middle.
    let plan = plan(&Sizes::dense(), "megatron:dp=3", &["hf"]);
    let all = plan.senders().iter().flat_map(|sender| &sender.edges).flat_map(|edge| &edge.fragments);
    let partial: Vec<_> =
        all.filter(|fragment| fragment.canonical.cols < plan.param(fragment.param).cols()).collect();
    assert!(!partial.is_empty());
    assert!(partial.iter().all(|fragment| fragment.canonical.rows == 1 && fragment.sources.len() == 1));
}

#[test]
fn boxes_longer_than_a_section_are_cut_by_rows() {
    // 2^20 rows of 2^12: twice what one section may hold.
    let sizes = Sizes { vocab: 1 << 20, hidden: 1 << 12, layers: 1, tied: true, ..Sizes::dense() };
    let plan = plan(&sizes, "hf", &["hf"]);
    let embedding = fragments_of(&plan, 0, receiver(0, 0), "model.embed_tokens.weight");
    let boxes: Vec<_> = embedding.iter().map(|fragment| fragment.canonical).collect();
    assert_eq!(boxes, [Box2::new(0, 1 << 19, 0, 1 << 12), Box2::new(1 << 19, 1 << 19, 0, 1 << 12)]);
    assert!(boxes.iter().all(|area| area.elements() == MAX_FRAGMENT_ELEMENTS));
    assert_eq!(embedding[1].dst_offset, 1 << 31);
    assert_eq!(embedding[1].sources[0].src_offset, 1 << 31);
    assert_ne!(embedding[0].cells, embedding[1].cells);
}

#[test]
fn the_log_is_written_in_boxes_of_whole_parameters() {
    let sizes = Sizes { vocab: 1 << 12, hidden: 1 << 11, ..Sizes::dense() };
    let model = Model::new(sizes.config(), &ServedDtypes::default()).expect("a model");
    let trainer = "megatron:tp=2,dp=3".parse().expect("a layout");
    let plan = RemapPlan::compile_log(&model, &trainer).expect("a plan");
    let mut covered = vec![0; plan.params().len()];
    for fragment in plan.senders().iter().flat_map(|sender| &sender.edges).flat_map(|edge| &edge.fragments) {
        assert!(fragment.elements() <= MAX_LOG_FRAGMENT_ELEMENTS);
        assert_eq!(fragment.dst_tensor, fragment.param.0, "the log holds parameters in order of id");
        covered[fragment.param.0 as usize] += fragment.elements();
    }
    assert!(plan.params().iter().zip(covered).all(|(param, covered)| param.elements() == covered));
}

#[test]
fn replicated_heads_are_counted_at_their_first_holder() {
    let plan = plan(&Sizes::dense(), "hf", &["vllm:tp=8"]);
    let key = "model.layers.1.self_attn.k_proj.weight";
    let first: Vec<_> =
        (0..8).map(|rank| fragments_of(&plan, 0, receiver(0, rank), key)[0].first_in_replica).collect();
    assert_eq!(first, [true, false, false, false, true, false, false, false]);
}

#[test]
fn a_tied_output_layer_is_no_second_tensor() {
    let sizes = Sizes { tied: true, ..Sizes::dense() };
    let plan = plan(&sizes, "megatron:pp=2", &["vllm:tp=2"]);
    let names = |receiver: ReceiverId| plan.receiver(receiver).tensors.iter().map(|tensor| &tensor.name);
    assert!(names(receiver(0, 1)).any(|name| name == "model.embed_tokens.weight"));
    assert!(names(receiver(0, 1)).all(|name| name != "lm_head.weight"));
    // LY-1: the copy on the last stage is held, and owned by nobody.
    let copy = plan.senders()[1].tensors.iter().find(|tensor| tensor.name == "output_layer.weight").unwrap();
    assert!(copy.elements() > 0 && copy.pieces.is_empty());
    let one_stage = crate::configs::plan(&sizes, "megatron:pp=1", &["hf"]);
    assert!(one_stage.senders()[0].tensors.iter().all(|tensor| tensor.name != "output_layer.weight"));
}

#[test]
fn ranks_and_receivers_have_their_documented_names_and_order() {
    let plan = plan(&Sizes::dense(), "megatron:tp=2,pp=2,dp=2", &["vllm:tp=2", "hf"]);
    let senders: Vec<_> = plan.senders().iter().map(|sender| sender.name.as_str()).collect();
    let expected = [
        "tp0-pp0-dp0",
        "tp1-pp0-dp0",
        "tp0-pp0-dp1",
        "tp1-pp0-dp1",
        "tp0-pp1-dp0",
        "tp1-pp1-dp0",
        "tp0-pp1-dp1",
        "tp1-pp1-dp1",
    ];
    assert_eq!(senders, expected);
    let receivers: Vec<_> =
        plan.replicas().iter().flat_map(|replica| &replica.receivers).map(|r| r.name.as_str()).collect();
    assert_eq!(receivers, ["rollout0/tp0-pp0", "rollout0/tp1-pp0", "rollout1/tp0-pp0"]);
}

#[test]
fn engine_tensors_have_the_shapes_that_engines_allocate() {
    let plan = plan(&Sizes::moe(), "hf", &["sglang:tp=4,ep=2"]);
    let shape = |name: &str| {
        let tensors = &plan.receiver(receiver(0, 1)).tensors;
        tensors.iter().find(|tensor| tensor.name == name).unwrap().shape.extents().to_vec()
    };
    assert_eq!(shape("model.embed_tokens.weight"), [192 / 4, 12]);
    assert_eq!(shape("model.layers.0.self_attn.qkv_proj.weight"), [(2 + 2) * 4, 12]);
    assert_eq!(shape("model.layers.0.self_attn.o_proj.weight"), [12, 8]);
    assert_eq!(shape("model.layers.0.mlp.experts.w13_weight"), [4, 2 * 4, 12]);
    assert_eq!(shape("model.layers.0.mlp.experts.w2_weight"), [4, 12, 4]);
    assert_eq!(shape("model.layers.0.mlp.gate.weight"), [8, 12]);
}

#[test]
fn served_dtypes_follow_policy_then_option_then_bf16() {
    let router = "model.layers.0.mlp.gate.weight";
    let dtype_of = |case: &Case, fqn: &str| case.model.param(fqn).unwrap().dtype;
    let plain = Case::new(&Sizes::moe(), "hf", &["hf"]);
    assert_eq!(dtype_of(&plain, router), Dtype::Bf16);
    for (trainer, rollout) in [("hf", "hf:router=fp32"), ("hf:router=fp32", "hf")] {
        let option = Case::new(&Sizes::moe(), trainer, &[rollout]);
        assert_eq!(dtype_of(&option, router), Dtype::Fp32);
        assert_eq!(dtype_of(&option, "model.norm.weight"), Dtype::Bf16);
    }
    let norm = Fqn::from("model.norm.weight");
    let served = ServedDtypes::new([(norm, Dtype::Fp32)].into(), &plain.trainer, &plain.rollouts).unwrap();
    let model = Model::new(Sizes::moe().config(), &served).unwrap();
    assert_eq!(model.param("model.norm.weight").unwrap().dtype, Dtype::Fp32);
    let plan = RemapPlan::compile(&model, &plain.trainer, &plain.rollouts).unwrap();
    let fp32 = plan.receiver(receiver(0, 0)).tensors.iter().filter(|tensor| tensor.dtype == Dtype::Fp32);
    assert_eq!(fp32.map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["model.norm.weight"]);
}

#[test]
fn fp32_routers_lie_in_a_buffer_of_their_own() {
    // Four routers of 96 elements in reverse order at 0, 128, 256, 384, padded to 512: one for each of four ranks.
    let plan = plan(&Sizes::moe(), "megatron:dp=4,router=fp32", &["hf"]);
    for (dp, sender) in plan.senders().iter().enumerate() {
        let routers = sender.tensors.iter().filter(|tensor| tensor.name.ends_with("mlp.router.weight"));
        let owned: Vec<_> = routers.map(|tensor| tensor.elements()).collect();
        let mut expected = [0; 4];
        expected[3 - dp] = 96;
        assert_eq!(owned, expected, "{}", sender.name);
    }
}

#[test]
fn ly3_equal_inputs_give_equal_digests_and_any_change_another() {
    let (dense, moe) = (Sizes::dense(), Sizes::moe());
    let alternate = ExpertSizes { count: 8, intermediate: 8, sparse_step: 2, dense_layers: Vec::new() };
    let variants = [
        (dense.clone(), "hf", vec!["hf"]),
        (Sizes { vocab: 131, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { hidden: 13, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { layers: 5, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { heads: 4, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { kv_heads: 4, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { head_dim: 5, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { intermediate: 24, ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { tied: true, ..dense.clone() }, "hf", vec!["hf"]),
        (dense.clone(), "megatron:tp=1", vec!["hf"]),
        (dense.clone(), "megatron:tp=2", vec!["hf"]),
        (dense.clone(), "megatron:pp=2", vec!["hf"]),
        (dense.clone(), "megatron:dp=2", vec!["hf"]),
        (dense.clone(), "hf:router=fp32", vec!["hf"]),
        (dense.clone(), "hf", vec![]),
        (dense.clone(), "hf", vec!["hf", "hf"]),
        (dense.clone(), "hf", vec!["vllm:tp=1"]),
        (dense.clone(), "hf", vec!["sglang:tp=1"]),
        (dense.clone(), "hf", vec!["vllm:tp=2"]),
        (dense.clone(), "hf", vec!["vllm:tp=2", "hf"]),
        (dense.clone(), "hf", vec!["hf", "vllm:tp=2"]),
        (moe.clone(), "hf", vec!["hf"]),
        (moe.clone(), "hf", vec!["hf:router=fp32"]),
        (moe.clone(), "hf", vec!["hf:router=bf16"]),
        (moe.clone(), "hf", vec!["sglang:tp=2"]),
        (moe.clone(), "hf", vec!["sglang:tp=2,ep=2"]),
        (Sizes { family: "qwen2", ..dense.clone() }, "hf", vec!["hf"]),
        (Sizes { family: "llama", ..dense.clone() }, "hf", vec!["hf"]),
        (dense.clone(), "megatron:tp=2,dp=2", vec!["hf"]),
        (dense.clone(), "megatron:tp=2,dp=2,zero=0", vec!["hf"]),
        (dense.clone(), "megatron:tp=2,dp=2,bucket=0", vec!["hf"]),
        (dense.clone(), "megatron:tp=2,dp=2,bucket=100", vec!["hf"]),
        (dense.clone(), "megatron:vpp=2", vec!["hf"]),
        (dense.clone(), "megatron:pp=2,vpp=2", vec!["hf"]),
        (dense.clone(), "megatron:pp=2,layers=1+3", vec!["hf"]),
        (dense.clone(), "megatron:pp=2,layers=3+1", vec!["hf"]),
        (dense.clone(), "fsdp:world=2", vec!["hf"]),
        (dense.clone(), "hsdp:world=2,replicas=2", vec!["hf"]),
        (dense.clone(), "hsdp:world=4,replicas=2", vec!["hf"]),
        (dense.clone(), "deepspeed:world=2", vec!["hf"]),
        (dense.clone(), "deepspeed:world=2,stage=2", vec!["hf"]),
        (dense.clone(), "deepspeed:world=2,stage=3", vec!["hf"]),
        (dense.clone(), "deepspeed:world=2,groups=2", vec!["hf"]),
        (dense.clone(), "hf", vec!["vllm:tp=1,pp=3"]),
        (dense.clone(), "hf", vec!["sglang:tp=1,pp=3"]),
        (moe.clone(), "megatron:dp=2,etp=2", vec!["hf"]),
        (moe.clone(), "megatron:dp=4,ep=2,etp=2", vec!["hf"]),
        (moe.clone(), "hf", vec!["vllm:tp=2"]),
        (moe.clone(), "hf", vec!["vllm:tp=2,w13=swapped"]),
        (moe.clone(), "hf", vec!["vllm:tp=2,ep=2"]),
        (moe.clone(), "hf", vec!["vllm:tp=2,ep=2,placement=round-robin"]),
        (moe.clone(), "hf", vec!["vllm:tp=2,ep=2,placement=round-robin,w13=swapped"]),
        (moe.clone(), "hf", vec!["sglang:tp=2,ep=2,w13=swapped"]),
        (moe.clone(), "megatron:dp=2", vec!["hf"]),
        (moe.clone(), "megatron:dp=2,ep=2", vec!["hf"]),
        (Sizes { experts: Some(alternate), ..moe }, "hf", vec!["hf"]),
    ];
    let digest =
        |(sizes, trainer, rollouts): &(Sizes, &str, Vec<&str>)| plan(sizes, trainer, rollouts).digest();
    let digests: BTreeSet<_> = variants.iter().map(digest).collect();
    assert_eq!(digests.len(), variants.len());
    assert_eq!(variants.iter().map(digest).collect::<BTreeSet<_>>(), digests);
}

#[test]
fn ly3_a_served_dtype_is_in_the_digest_even_without_receivers() {
    let trainer = "hf".parse().unwrap();
    let digest = |from_policy: BTreeMap<Fqn, Dtype>, rollouts: &[RolloutLayout]| {
        let served = ServedDtypes::new(from_policy, &trainer, rollouts).unwrap();
        let model = Model::new(Sizes::dense().config(), &served).unwrap();
        RemapPlan::compile(&model, &trainer, rollouts).unwrap().digest()
    };
    for rollouts in [vec![], vec!["hf".parse().unwrap()]] {
        let norm = |dtype| BTreeMap::from([(Fqn::from("model.norm.weight"), dtype)]);
        assert_ne!(digest(norm(Dtype::Fp32), &rollouts), digest(norm(Dtype::Bf16), &rollouts));
        assert_eq!(digest(norm(Dtype::Bf16), &rollouts), digest(BTreeMap::new(), &rollouts));
    }
}

#[test]
fn layers_named_or_skipped_are_dense() {
    let kinds = |sparse_step, dense_layers: Vec<u64>| {
        let experts = ExpertSizes { count: 2, intermediate: 4, sparse_step, dense_layers };
        let case = Case::new(&Sizes { experts: Some(experts), ..Sizes::dense() }, "hf", &[]);
        let has =
            |layer: u64, name: &str| case.model.param(&format!("model.layers.{layer}.mlp.{name}")).is_some();
        let kind = |layer| {
            assert_ne!(has(layer, "gate.weight"), has(layer, "gate_proj.weight"));
            assert_eq!(has(layer, "gate.weight"), has(layer, "experts.1.down_proj.weight"));
            has(layer, "gate.weight")
        };
        (0..4).map(kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(1, vec![]), [true; 4]);
    assert_eq!(kinds(2, vec![]), [false, true, false, true]);
    assert_eq!(kinds(2, vec![3]), [false, true, false, false]);
    assert_eq!(kinds(1, vec![0, 2]), [false, true, false, true]);
}

#[test]
fn parameters_are_in_byte_order_of_their_names() {
    let plan = plan(&Sizes { layers: 11, ..Sizes::moe() }, "hf", &["hf"]);
    let names: Vec<_> = plan.params().iter().map(|meta| meta.fqn.as_str().as_bytes()).collect();
    assert!(names.is_sorted());
    // Layer 10 comes before layer 2, and "lm_head" before "model".
    assert_eq!(names[0], b"lm_head.weight");
    let position = |name: &str| names.iter().position(|other| *other == name.as_bytes()).unwrap();
    let norm = |layer: u32| position(&format!("model.layers.{layer}.input_layernorm.weight"));
    assert!(norm(10) < norm(2));
    assert!((0..).zip(plan.params()).all(|(id, meta)| meta.id.0 == id));
}

fn qwen3_30b_a3b() -> Sizes {
    let experts = ExpertSizes { count: 128, intermediate: 768, sparse_step: 1, dense_layers: Vec::new() };
    Sizes {
        family: "qwen3",
        vocab: 151_936,
        hidden: 2048,
        layers: 48,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        intermediate: 6144,
        tied: false,
        experts: Some(experts),
    }
}

#[test]
fn full_size_models_plan_with_one_part_per_box_and_never_one_per_element() {
    let dense = Sizes {
        layers: 36,
        hidden: 4096,
        kv_heads: 8,
        intermediate: 12_288,
        experts: None,
        ..qwen3_30b_a3b()
    };
    let cases = [
        (dense, "megatron:tp=4,pp=2,dp=4", ["vllm:tp=8", "vllm:tp=2"], 40_000),
        (qwen3_30b_a3b(), "megatron:tp=2,pp=2,dp=8,ep=8", ["sglang:tp=8,ep=8", "sglang:tp=4,ep=2"], 150_000),
    ];
    for (sizes, trainer, rollouts, fragments_at_most) in cases {
        let plan = plan(&sizes, trainer, &rollouts);
        assert!(plan.fragment_count() < fragments_at_most, "{} fragments", plan.fragment_count());
        let mut covered = BTreeMap::new();
        for fragment in plan
            .senders()
            .iter()
            .flat_map(|sender| &sender.edges)
            .flat_map(|edge| edge.fragments.iter().filter(|fragment| fragment.first_in_replica))
        {
            *covered.entry(fragment.param).or_insert(0) += fragment.elements();
        }
        for meta in plan.params() {
            assert_eq!(covered[&meta.id], 2 * meta.elements(), "two replicas of {}", meta.fqn);
        }
    }
}
