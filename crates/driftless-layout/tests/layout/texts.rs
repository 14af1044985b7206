//! Layouts as text.

use driftless_layout::{LayoutError, RolloutEngine, RolloutLayout, TrainerKind, TrainerLayout};
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
    let megatron = |text: &str| text.parse::<TrainerLayout>().unwrap().kind;
    assert_eq!(megatron("megatron:pp=2,tp=4"), TrainerKind::Megatron { tp: 4, pp: 2, dp: 1, ep: 1 });
    assert_eq!(megatron("megatron"), TrainerKind::Megatron { tp: 1, pp: 1, dp: 1, ep: 1 });
    assert_eq!(megatron("hf"), TrainerKind::Hf);
    let engine = |text: &str| text.parse::<RolloutLayout>().unwrap().engine;
    assert_eq!(engine("vllm"), RolloutEngine::Vllm { tp: 1 });
    assert_eq!(engine("sglang:ep=2,tp=4"), RolloutEngine::Sglang { tp: 4, ep: 2 });
}

#[test]
fn the_canonical_text_is_stable() {
    for text in ["hf", "hf:router=fp32", "megatron:tp=1", "megatron:tp=2,pp=2,dp=3,ep=6,router=fp32"] {
        assert_eq!(text.parse::<TrainerLayout>().unwrap().to_string(), text);
    }
    for text in ["hf", "vllm:tp=1", "vllm:tp=8,router=fp32", "sglang:tp=2,ep=2", "sglang:tp=4"] {
        assert_eq!(text.parse::<RolloutLayout>().unwrap().to_string(), text);
    }
    assert_eq!("vllm:router=fp32,tp=2".parse::<RolloutLayout>().unwrap().router, Some(Dtype::Fp32));
}

#[test]
fn ly4_texts_that_mean_nothing_are_refused_by_name() {
    let cases = [
        ("", "trainer \"\""),
        ("deepspeed:tp=2", "trainer \"deepspeed\""),
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
    ];
    for (text, named) in cases {
        let error = trainer_error(text);
        assert!(error.contains(named), "{text}: {error}");
        assert!(error.contains("expected"), "{text}: {error}");
    }
    assert!(rollout_error("megatron:tp=2").contains("hf, vllm or sglang"));
    assert!(rollout_error("vllm:tp=2,ep=2").contains("axis \"ep\""));
}
