//! Layouts as text.

use driftless_layout::{
    EngineMesh, ExpertPlacement, GateUpOrder, LayoutError, MegatronMesh, MegatronOptimizer, RolloutEngine,
    RolloutLayout, TrainerKind, TrainerLayout, ZeroGroups, ZeroStage,
};
use driftless_types::Dtype;

fn trainer_error(text: &str) -> String {
    let error = text.parse::<TrainerLayout>().unwrap_err();
    assert!(matches!(error, LayoutError::LayoutText { .. }));
    error.to_string()
}

fn rollout_error(text: &str) -> String {
    text.parse::<RolloutLayout>().unwrap_err().to_string()
}

#[test]
fn axes_that_are_not_named_are_one() {
    let trainer = |text: &str| text.parse::<TrainerLayout>().unwrap().kind;
    let mesh = MegatronMesh { tp: 4, pp: 2, ..MegatronMesh::default() };
    assert_eq!(trainer("megatron:pp=2,tp=4"), TrainerKind::Megatron(mesh));
    assert_eq!(trainer("megatron"), TrainerKind::Megatron(MegatronMesh::default()));
    assert_eq!(trainer("hf"), TrainerKind::Hf);
    assert_eq!(trainer("hsdp:world=6"), TrainerKind::Hsdp { world: 6, replicas: 1 });
    let engine = |text: &str| text.parse::<RolloutLayout>().unwrap().engine;
    let (mesh, placement) = (EngineMesh::default(), ExpertPlacement::Linear);
    assert_eq!(engine("vllm"), RolloutEngine::Vllm { mesh, placement });
    let mesh = EngineMesh { tp: 4, ep: 2, ..mesh };
    assert_eq!(engine("sglang:ep=2,tp=4"), RolloutEngine::Sglang { mesh });
}

#[test]
fn every_option_has_its_meaning() {
    let trainer = |text: &str| text.parse::<TrainerLayout>().unwrap().kind;
    let optimizer = MegatronOptimizer::Distributed { bucket_elements: Some(1000) };
    let mesh =
        MegatronMesh { tp: 2, pp: 3, vpp: 4, dp: 5, ep: 6, etp: 7, layers: Some(vec![1, 0, 2]), optimizer };
    let text = "megatron:tp=2,pp=3,vpp=4,dp=5,ep=6,etp=7,layers=1+0+2,bucket=1000";
    assert_eq!(trainer(text), TrainerKind::Megatron(mesh));
    let plain = MegatronMesh { optimizer: MegatronOptimizer::Replicated, ..MegatronMesh::default() };
    assert_eq!(trainer("megatron:zero=0"), TrainerKind::Megatron(plain));
    assert_eq!(trainer("megatron:zero=1"), TrainerKind::Megatron(MegatronMesh::default()));
    let (stage, groups) = (ZeroStage::Three, ZeroGroups::Decay);
    assert_eq!(
        trainer("deepspeed:world=3,stage=3,groups=2"),
        TrainerKind::DeepSpeed { world: 3, stage, groups }
    );
    let mesh = EngineMesh { tp: 4, pp: 2, ep: 4, gate_up: GateUpOrder::Swapped };
    let placement = ExpertPlacement::RoundRobin;
    let text = "vllm:tp=4,pp=2,ep=4,placement=round-robin,w13=swapped";
    assert_eq!(text.parse::<RolloutLayout>().unwrap().engine, RolloutEngine::Vllm { mesh, placement });
}

#[test]
fn the_canonical_text_is_stable() {
    let trainers = [
        "hf",
        "hf:router=fp32",
        "megatron:tp=1",
        "megatron:tp=2,pp=2,dp=3,ep=6,router=fp32",
        "megatron:tp=2,pp=3,vpp=4,dp=5,ep=6,etp=7,layers=1+0+2,bucket=1000",
        "megatron:tp=2,zero=0",
        "fsdp:world=5",
        "hsdp:world=6,replicas=2,router=bf16",
        "deepspeed:world=1,stage=1",
        "deepspeed:world=3,stage=3,groups=2",
    ];
    for text in trainers {
        assert_eq!(text.parse::<TrainerLayout>().unwrap().to_string(), text);
    }
    let rollouts = [
        "hf",
        "vllm:tp=1",
        "vllm:tp=8,router=fp32",
        "vllm:tp=4,pp=2,ep=4,placement=round-robin,w13=swapped,router=fp32",
        "sglang:tp=2,ep=2",
        "sglang:tp=4",
        "sglang:tp=4,pp=3,w13=swapped",
    ];
    for text in rollouts {
        assert_eq!(text.parse::<RolloutLayout>().unwrap().to_string(), text);
    }
    let defaults = "vllm:placement=linear,w13=checkpoint,router=fp32,tp=2".parse::<RolloutLayout>().unwrap();
    assert_eq!(defaults.to_string(), "vllm:tp=2,router=fp32");
    assert_eq!(defaults.router, Some(Dtype::Fp32));
}

#[test]
fn ly4_texts_that_mean_nothing_are_refused_by_name() {
    let cases = [
        ("", "trainer \"\""),
        ("neox:tp=2", "trainer \"neox\""),
        ("vllm:tp=2", "trainer \"vllm\""),
        ("megatron:tq=2", "axis \"tq\""),
        ("hf:tp=2", "axis \"tp\""),
        ("megatron:tp=2,tp=2", "axis tp twice"),
        ("megatron:tp=0", "tp=0"),
        ("megatron:tp=-1", "tp=-1"),
        ("megatron:tp=+1", "tp=+1"),
        ("megatron:tp=two", "tp=two"),
        ("megatron:tp=", "tp="),
        ("megatron:tp=99999999999999999999", "tp=99999999999999999999"),
        ("megatron:tp", "\"tp\""),
        ("megatron:", "\"\""),
        ("megatron:tp=2,", "\"\""),
        ("megatron:tp=60000,dp=60000", "at most 65536 ranks"),
        ("megatron:router=fp16", "router=fp16"),
        ("megatron:router=fp32,router=fp32", "router twice"),
        ("megatron:layers=1+1,layers=2", "layers twice"),
        ("megatron:layers=1++1", "layers=1++1"),
        ("megatron:layers=", "layers="),
        ("megatron:layers=-1+2", "layers=-1+2"),
        ("megatron:layers=99999999999+1", "layers=99999999999+1"),
        ("megatron:bucket=big", "bucket=big"),
        ("megatron:bucket=99999999999999999", "bucket=99999999999999999"),
        ("megatron:zero=3", "zero=3"),
        ("megatron:zero=0,bucket=5", "bucket with zero=0"),
        ("fsdp:world=0", "world=0"),
        ("fsdp:replicas=2", "axis \"replicas\""),
        ("fsdp:world=70000", "world=70000"),
        ("deepspeed:world=2,stage=4", "stage=4"),
        ("deepspeed:world=2,groups=3", "groups=3"),
    ];
    for (text, named) in cases {
        let error = trainer_error(text);
        assert!(error.contains(named), "{text}: {error}");
        assert!(error.contains("expected"), "{text}: {error}");
    }
    assert!(rollout_error("megatron:tp=2").contains("hf, vllm or sglang"));
    assert!(rollout_error("sglang:tp=2,placement=linear").contains("axis \"placement\""));
    assert!(rollout_error("vllm:placement=random").contains("placement=linear or placement=round-robin"));
    assert!(rollout_error("vllm:w13=up").contains("w13=checkpoint or w13=swapped"));
}
