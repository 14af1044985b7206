//! LY-4: configs, meshes and dtypes that do not fit, each refused with what was found and expected.

use crate::configs::{Case, ExpertSizes, Sizes};
use driftless_layout::{
    EngineMesh, ExpertPlacement, LayoutError, MegatronMesh, Model, ModelConfig, RemapPlan, RolloutEngine,
    RolloutLayout, ServedDtypes, TrainerKind, TrainerLayout, ZeroGroups, ZeroStage,
};
use driftless_types::{Dtype, Fqn};
use serde_json::{Value, json};

fn refused(json: &Value) -> LayoutError {
    ModelConfig::from_json(&json.to_string()).unwrap_err()
}

/// The dense config with one key set, or without it if `value` is null.
fn with(sizes: &Sizes, key: &str, value: Value) -> Value {
    let mut json = sizes.json();
    json.as_object_mut().unwrap().remove(key);
    if !value.is_null() {
        json[key] = value;
    }
    json
}

#[test]
fn ly4_every_needed_key_is_missed_by_name() {
    let of_all = [
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "num_experts",
        "moe_intermediate_size",
    ];
    for key in of_all {
        let error = refused(&with(&Sizes::moe(), key, Value::Null));
        let LayoutError::ConfigKey { key: named, found, .. } = error else { panic!("{error}") };
        assert_eq!((named.as_str(), found.as_str()), (key, "nothing"));
    }
}

#[test]
fn ly4_values_that_no_model_has_are_refused_by_key_and_value() {
    let cases = [
        ("vocab_size", json!(0)),
        ("vocab_size", json!(-5)),
        ("vocab_size", json!("512")),
        ("vocab_size", json!(512.0)),
        ("hidden_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(16)),
        ("head_dim", json!(0)),
        ("head_dim", json!([4])),
        ("tie_word_embeddings", json!("yes")),
        ("num_experts", json!(1u64 << 32)),
        ("decoder_sparse_step", json!(0)),
        ("mlp_only_layers", json!([4])),
        ("mlp_only_layers", json!(["0"])),
        ("mlp_only_layers", json!(0)),
        ("model_type", json!(3)),
    ];
    for (key, value) in cases {
        let error = refused(&with(&Sizes::moe(), key, value.clone()));
        let LayoutError::ConfigKey { key: named, found, expected } = error else { panic!("{error}") };
        assert_eq!((named.as_str(), found), (key, value.to_string()));
        assert!(!expected.is_empty());
    }
}

#[test]
fn ly4_an_unknown_model_type_is_told_the_known_ones() {
    let error = refused(&with(&Sizes::dense(), "model_type", json!("gemma3"))).to_string();
    let expected =
        "one of llama, qwen2, qwen3, qwen3_moe, or a table generic_tensors for the generic converter";
    assert_eq!(error, format!("model config key model_type: found \"gemma3\", expected {expected}"));
}

#[test]
fn ly4_unsupported_features_are_refused_by_name() {
    let cases = [
        ("use_sliding_window", json!(true), "sliding-window"),
        ("quantization_config", json!({"quant_method": "fp8"}), "quantized"),
        ("compression_config", json!({}), "quantized"),
        ("attention_bias", json!(true), "attention bias"),
        ("attn_output_gate", json!(true), "output gate"),
        ("shared_expert_intermediate_size", json!(32), "shared experts"),
        ("n_shared_experts", json!(1), "shared experts"),
        ("num_nextn_predict_layers", json!(1), "MTP"),
        ("zero_centered_gamma", json!(true), "zero-centered"),
        ("layer_types", json!(["full_attention", "sliding_attention"]), "full_attention"),
        ("layer_types", json!(["linear_attention"]), "full_attention"),
        ("full_attention_interval", json!(4), "linear attention"),
        ("shared_expert_gate", json!(true), "shared expert's gate"),
        ("mtp_num_layers", json!(1), "MTP"),
        ("speculators_config", json!({"algorithm": "eagle3"}), "draft"),
        ("moe_grouped_gemm", json!(true), "3-D grouped expert weights"),
        ("enable_eplb", json!(true), "load balancing"),
        ("num_redundant_experts", json!(2), "redundant experts"),
        ("lora_extra_vocab_size", json!(256), "LoRA-extended vocabulary"),
    ];
    for (key, value, named) in cases {
        let error = refused(&with(&Sizes::dense(), key, value.clone()));
        let LayoutError::Unsupported { key: found, needed, .. } = &error else { panic!("{error}") };
        assert_eq!(found, key);
        assert!(!needed.is_empty());
        let text = error.to_string();
        assert!(text.contains(named) && text.contains(needed) && text.contains("it needs"), "{text}");
    }
}

#[test]
fn ly4_options_that_frameworks_have_and_we_do_not_are_refused_by_name() {
    let trainers = [
        ("megatron:masters=bf16", "16-bit master"),
        ("megatron:tp=2,instances=2", "optimizer instance"),
        ("megatron:cp=2", "dp="),
        ("megatron:lora=8", "LoRA"),
        ("megatron:mtp=1", "MTP"),
        ("fsdp:world=4,tp=2", "FSDP mixed with tensor parallelism"),
        ("hsdp:world=4,replicas=2,ep=2", "FSDP mixed with expert parallelism"),
        ("fsdp:pp=2", "FSDP mixed with pipeline parallelism"),
        ("deepspeed:world=4,tp=2", "DeepSpeed mixed with tensor parallelism"),
        ("deepspeed:world=4,pp=2", "DeepSpeed mixed with pipeline parallelism"),
        ("deepspeed:world=4,ep=2", "DeepSpeed mixed with expert parallelism"),
    ];
    let rollouts = [
        ("sglang:tp=2,dp=2", "DP attention"),
        ("vllm:tp=2,dp_attention=1", "DP attention"),
        ("vllm:tp=2,eplb=1", "expert load balancing"),
        ("vllm:redundant_experts=2", "redundant experts"),
        ("sglang:lora=1", "LoRA"),
        ("vllm:quantization=fp8", "quantized"),
        ("sglang:draft=eagle", "draft head"),
    ];
    let of_trainers = trainers.map(|(text, named)| (text, named, text.parse::<TrainerLayout>().err()));
    let of_rollouts = rollouts.map(|(text, named)| (text, named, text.parse::<RolloutLayout>().err()));
    for (text, named, error) in of_trainers.into_iter().chain(of_rollouts) {
        let error = error.expect(text);
        let LayoutError::UnsupportedOption { layout, option, .. } = &error else { panic!("{error}") };
        assert!(layout == text && text.contains(option.as_str()), "{error}");
        assert!(error.to_string().contains(named) && error.to_string().contains("it needs"), "{error}");
    }
}

#[test]
fn ly4_tensors_of_what_is_refused_are_refused_by_name() {
    let cases = [
        ("model.layers.0.mlp.shared_expert.up_proj.weight", "shared expert"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "shared expert's gate"),
        ("model.layers.0.mlp.experts.gate_up_proj", "3-D tensor"),
        ("model.layers.0.mlp.experts.down_proj", "3-D tensor"),
        ("model.layers.0.mlp.gate.e_score_correction_bias", "correction bias"),
        ("model.layers.0.linear_attn.in_proj.weight", "linear-attention"),
        ("mtp.layers.0.input_layernorm.weight", "MTP"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "LoRA"),
        ("model.layers.0.self_attn.q_proj.weight_scale", "quantized"),
    ];
    for (name, named) in cases {
        let policy = [(Fqn::from(name), Dtype::Bf16)];
        let served = ServedDtypes::new(policy.into(), &"hf".parse().unwrap(), &[]).unwrap();
        let error = Model::new(Sizes::moe().config(), &served).unwrap_err();
        assert!(
            matches!(&error, LayoutError::UnsupportedTensor { fqn, .. } if fqn.as_str() == name),
            "{error}"
        );
        assert!(error.to_string().contains(named) && error.to_string().contains("it needs"), "{error}");
    }
}

#[test]
fn keys_that_ask_for_nothing_are_accepted() {
    let mut json = Sizes::dense().json();
    json["use_sliding_window"] = false.into();
    json["quantization_config"] = Value::Null;
    json["shared_expert_intermediate_size"] = 0.into();
    json["layer_types"] = json!(["full_attention", "full_attention"]);
    json["sliding_window"] = 4096.into();
    json["unheard_of"] = json!({"deep": [1, 2]});
    assert_eq!(ModelConfig::from_json(&json.to_string()).unwrap(), Sizes::dense().config());
}

#[test]
fn the_head_dimension_defaults_to_an_even_share() {
    let sizes = Sizes { hidden: 32, ..Sizes::dense() };
    let config = ModelConfig::from_json(&with(&sizes, "head_dim", Value::Null).to_string()).unwrap();
    assert_eq!(config.head_dim(), 4);
    let uneven = refused(&with(&Sizes::dense(), "head_dim", Value::Null));
    assert!(matches!(uneven, LayoutError::ConfigKey { key, .. } if key == "head_dim"));
}

#[test]
fn ly4_a_config_that_is_no_json_object_is_refused() {
    let error = ModelConfig::from_json("{\"model_type\": \"qwen3\"").unwrap_err();
    assert!(matches!(error, LayoutError::ConfigNotJson { .. }));
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("EOF"));
    assert!(matches!(refused(&json!([1])), LayoutError::ConfigKey { .. }));
    let deep = "[".repeat(100_000);
    assert!(matches!(ModelConfig::from_json(&deep), Err(LayoutError::ConfigNotJson { .. })));
}

/// Compiles what must not fit; the axis that is named, with its size.
fn misfit(sizes: &Sizes, trainer: &str, rollout: &str) -> (&'static str, u64, String) {
    let case = Case::new(sizes, trainer, &[rollout]);
    let error = RemapPlan::compile(&case.model, &case.trainer, &case.rollouts).unwrap_err();
    let text = error.to_string();
    let LayoutError::AxisMisfit { axis, found, .. } = error else { panic!("{error}") };
    (axis, found, text)
}

#[test]
fn ly4_axes_that_do_not_fit_the_model_are_refused_with_its_numbers() {
    let dense = Sizes::dense();
    let moe = Sizes::moe();
    let narrow = Sizes { intermediate: 18, ..dense.clone() };
    let odd_kv = Sizes { heads: 12, kv_heads: 3, ..dense.clone() };
    let odd_rows = Sizes { heads: 16, kv_heads: 1, head_dim: 1, intermediate: 32, ..dense.clone() };
    let many_heads = Sizes { heads: 128, kv_heads: 128, intermediate: 128, vocab: 64, ..dense.clone() };
    let three = ExpertSizes { count: 3, intermediate: 6, sparse_step: 1, dense_layers: Vec::new() };
    let odd_experts = Sizes { experts: Some(three), ..dense.clone() };
    let cases = [
        (&dense, "megatron:tp=3", "hf", "tp", 3, "num_attention_heads = 8"),
        (&odd_kv, "megatron:tp=2", "hf", "tp", 2, "num_key_value_heads = 3"),
        (&odd_rows, "megatron:tp=16", "hf", "tp", 16, "rows of the fused qkv = 18"),
        (&narrow, "megatron:tp=4", "hf", "tp", 4, "intermediate_size = 18"),
        (&dense, "megatron:pp=3", "hf", "pp", 3, "num_hidden_layers = 4"),
        (&dense, "megatron:dp=2,ep=2", "hf", "ep", 2, "without experts"),
        (&moe, "megatron:dp=3,ep=3", "hf", "ep", 3, "num_experts = 8"),
        (&moe, "megatron:tp=2,dp=3,ep=4", "hf", "ep", 4, "tp * dp / etp = 6"),
        (&moe, "megatron:dp=2,etp=2,ep=2", "hf", "ep", 2, "tp * dp / etp = 1"),
        (&moe, "megatron:dp=3,etp=2", "hf", "etp", 2, "tp * dp = 3"),
        (&odd_experts, "megatron:dp=4,etp=4", "hf", "etp", 4, "moe_intermediate_size = 6"),
        (&dense, "megatron:dp=2,etp=2", "hf", "etp", 2, "without experts"),
        (&dense, "megatron:pp=2,vpp=4", "hf", "vpp", 4, "layers of a stage = 2"),
        (&dense, "megatron:pp=2,layers=1+1", "hf", "layers", 2, "add up to num_hidden_layers = 4"),
        (&dense, "megatron:pp=2,layers=1+2+1", "hf", "layers", 3, "pp * vpp = 2 sizes"),
        (&dense, "megatron:vpp=2,layers=4", "hf", "layers", 1, "pp * vpp = 2 sizes"),
        (&dense, "hsdp:world=6,replicas=4", "hf", "replicas", 4, "world = 6"),
        (&dense, "hf", "vllm:pp=5", "pp", 5, "at most num_hidden_layers = 4"),
        (&dense, "hf", "sglang:pp=5", "pp", 5, "at most num_hidden_layers = 4"),
        (&moe, "hf", "vllm:tp=4,ep=2", "ep", 2, "1 or tp = 4"),
        (&odd_experts, "hf", "vllm:tp=4,ep=4", "ep", 4, "at most num_experts = 3"),
        (&dense, "hf", "vllm:tp=3", "tp", 3, "num_attention_heads = 8"),
        (&odd_kv, "hf", "vllm:tp=4", "tp", 4, "num_key_value_heads = 3"),
        (&narrow, "hf", "vllm:tp=4", "tp", 4, "intermediate_size = 18"),
        (&many_heads, "hf", "vllm:tp=128", "tp", 128, "padded vocab_size = 64"),
        (&moe, "hf", "sglang:tp=2,ep=4", "ep", 4, "tp = 2"),
        (&odd_experts, "hf", "sglang:tp=2,ep=2", "ep", 2, "num_experts = 3"),
        (&odd_experts, "hf", "vllm:tp=4", "tp", 4, "moe_intermediate_size = 6"),
    ];
    for (sizes, trainer, rollout, axis, found, expected) in cases {
        let (named, size, text) = misfit(sizes, trainer, rollout);
        assert_eq!((named, size), (axis, found), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn ly4_meshes_built_in_code_are_checked_like_texts() {
    let (case, rollouts) = (Case::new(&Sizes::moe(), "hf", &[]), []);
    let refuses = |kind: TrainerKind| {
        let trainer = TrainerLayout { kind, router: None };
        RemapPlan::compile(&case.model, &trainer, &rollouts).unwrap_err()
    };
    let one = MegatronMesh::default();
    let zeros = [
        TrainerKind::Megatron(MegatronMesh { tp: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { pp: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { vpp: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { dp: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { ep: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { etp: 0, ..one.clone() }),
        TrainerKind::Megatron(MegatronMesh { layers: Some(vec![]), ..one.clone() }),
        TrainerKind::Fsdp { world: 0 },
        TrainerKind::Hsdp { world: 0, replicas: 1 },
        TrainerKind::Hsdp { world: 1, replicas: 0 },
        TrainerKind::DeepSpeed { world: 0, stage: ZeroStage::One, groups: ZeroGroups::One },
    ];
    for kind in zeros {
        let error = refuses(kind);
        assert!(matches!(error, LayoutError::AxisMisfit { found: 0, .. }), "{error}");
    }
    let too_many = [
        TrainerKind::Megatron(MegatronMesh { dp: u32::MAX, ..one }),
        TrainerKind::Fsdp { world: u32::MAX },
        TrainerKind::DeepSpeed { world: u32::MAX, stage: ZeroStage::Two, groups: ZeroGroups::One },
    ];
    for kind in too_many {
        let error = refuses(kind);
        assert!(matches!(error, LayoutError::TooLarge { .. }), "{error}");
    }
    let (one, placement) = (EngineMesh::default(), ExpertPlacement::Linear);
    for mesh in [EngineMesh { tp: 0, ..one }, EngineMesh { pp: 0, ..one }, EngineMesh { ep: 0, ..one }] {
        for engine in [RolloutEngine::Vllm { mesh, placement }, RolloutEngine::Sglang { mesh }] {
            let rollout = RolloutLayout { engine, router: None };
            let error = RemapPlan::compile(&case.model, &case.trainer, &[rollout]).unwrap_err();
            assert!(matches!(error, LayoutError::AxisMisfit { found: 0, .. }), "{error}");
        }
    }
}

#[test]
fn expert_parallelism_of_a_dense_model_is_ignored_and_says_so() {
    for engine in ["sglang", "vllm"] {
        let case = Case::new(&Sizes::dense(), "hf", &[&format!("{engine}:tp=2,ep=4")]);
        assert!(case.rollouts[0].ignores_expert_axis(&case.model));
        let plain = Case::new(&Sizes::dense(), "hf", &[&format!("{engine}:tp=2")]);
        assert!(!plain.rollouts[0].ignores_expert_axis(&plain.model));
        assert_eq!(case.plan().replicas()[0].receivers, plain.plan().replicas()[0].receivers);
    }
}

fn contradiction(error: &LayoutError) -> String {
    assert!(matches!(error, LayoutError::DtypeContradiction { .. }), "{error}");
    error.to_string()
}

#[test]
fn ly4_contradicting_dtypes_are_refused_with_both_sources() {
    let router = Fqn::from("model.layers.0.mlp.gate.weight");
    let (trainer, bf16) = ("hf:router=fp32".parse().unwrap(), "vllm:tp=1,router=bf16".parse().unwrap());
    let text = contradiction(&ServedDtypes::new([].into(), &trainer, &[bf16]).unwrap_err());
    assert!(text.contains("vllm:tp=1,router=bf16") && text.contains("hf:router=fp32"), "{text}");
    let policy = [(router.clone(), Dtype::Bf16)];
    let text = contradiction(&ServedDtypes::new(policy.into(), &trainer, &[]).unwrap_err());
    assert!(text.contains(router.as_str()) && text.contains("starting policy"), "{text}");
    // A model made without the option that its layouts carry.
    let model = Model::new(Sizes::moe().config(), &ServedDtypes::default()).unwrap();
    let text = contradiction(&RemapPlan::compile(&model, &trainer, &[]).unwrap_err());
    assert!(text.contains(router.as_str()), "{text}");
    let served = ServedDtypes::new([(router, Dtype::Fp32)].into(), &trainer, &[]).unwrap();
    assert!(Model::new(Sizes::moe().config(), &served).is_ok());
}

#[test]
fn ly4_a_fused_tensor_of_two_dtypes_is_refused() {
    let key = Fqn::from("model.layers.2.self_attn.k_proj.weight");
    for (trainer, rollout) in [("hf", "vllm:tp=2"), ("megatron:tp=2", "hf")] {
        let (trainer, rollout) = (trainer.parse().unwrap(), [rollout.parse().unwrap()]);
        let served = ServedDtypes::new([(key.clone(), Dtype::Fp32)].into(), &trainer, &rollout).unwrap();
        let model = Model::new(Sizes::dense().config(), &served).unwrap();
        let text = contradiction(&RemapPlan::compile(&model, &trainer, &rollout).unwrap_err());
        assert!(text.contains("qkv") && text.contains(key.as_str()), "{text}");
    }
}

#[test]
fn ly4_a_policy_with_a_foreign_tensor_is_refused() {
    let foreign = Fqn::from("model.layers.9.input_layernorm.weight");
    let served =
        ServedDtypes::new([(foreign.clone(), Dtype::Bf16)].into(), &"hf".parse().unwrap(), &[]).unwrap();
    let error = Model::new(Sizes::dense().config(), &served).unwrap_err();
    assert!(matches!(error, LayoutError::UnknownParameter { fqn } if fqn == foreign));
}
