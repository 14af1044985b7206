//! Random models and meshes: either every element arrives, or the misfit is a typed refusal.

use crate::configs::{Case, ExpertSizes, Sizes};
use crate::cover;
use driftless_layout::{LayoutError, RemapPlan};
use proptest::prelude::*;

fn sizes() -> impl Strategy<Value = Sizes> {
    let experts = (
        prop::sample::select(vec![2u64, 4, 4, 8, 3]),
        1u64..=4,
        1u64..=3,
        prop::collection::vec(0u64..2, 0..2),
    )
        .prop_map(|(count, intermediate, sparse_step, dense_layers)| ExpertSizes {
            count,
            intermediate: 4 * intermediate,
            sparse_step,
            dense_layers,
        });
    (
        (1u64..140, 1u64..=6, prop::sample::select(vec![2u64, 4])),
        (
            prop::sample::select(vec![1u64, 2, 2, 4, 3]),
            prop::sample::select(vec![1u64, 2, 4]),
            1u64..=4,
            1u64..=4,
        ),
        any::<bool>(),
        prop::option::of(experts),
    )
        .prop_map(
            |((vocab, hidden, layers), (per_group, kv_heads, head_dim, intermediate), tied, experts)| Sizes {
                vocab,
                hidden,
                layers,
                heads: per_group * kv_heads,
                kv_heads,
                head_dim,
                intermediate: 8 * intermediate,
                tied,
                experts,
            },
        )
}

fn axis(largest: u32) -> impl Strategy<Value = u32> {
    1..=largest
}

/// Sizes that often fit, and now and then one that seldom does.
fn mostly(common: &'static [u32], odd: u32) -> impl Strategy<Value = u32> {
    prop_oneof![6 => prop::sample::select(common), 1 => Just(odd)]
}

/// Whether the rules let this model be cut this way, restated.
fn fits(sizes: &Sizes, trainer: [u64; 4], rollout: [u64; 2]) -> bool {
    let [tp, pp, dp, ep] = trainer;
    let [s, e] = rollout;
    let cuts_heads = |n: u64| {
        sizes.heads.is_multiple_of(n)
            && (sizes.kv_heads.is_multiple_of(n) || n.is_multiple_of(sizes.kv_heads))
    };
    let dense_layers = (0..sizes.layers).any(|layer| !sizes.is_expert_layer(layer));
    let cuts_mlp = |n: u64| !dense_layers || sizes.intermediate.is_multiple_of(n);
    let (trainer_experts, engine_experts) = sizes.experts.as_ref().map_or((ep == 1, true), |experts| {
        let of_engine = s.is_multiple_of(e)
            && experts.count.is_multiple_of(e)
            && (s.is_multiple_of(e) && experts.intermediate.is_multiple_of(s / e));
        (experts.count.is_multiple_of(ep), of_engine)
    });
    let qkv_rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim;
    let trainer = cuts_heads(tp)
        && qkv_rows.is_multiple_of(tp)
        && cuts_mlp(tp)
        && sizes.layers.is_multiple_of(pp)
        && (tp * dp).is_multiple_of(ep)
        && trainer_experts;
    let padded_vocab = sizes.vocab.div_ceil(64) * 64;
    trainer && cuts_heads(s) && cuts_mlp(s) && padded_vocab.is_multiple_of(s) && engine_experts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn ly1_ly2_ly4_every_element_arrives_or_the_misfit_is_refused(
        sizes in sizes(),
        (tp, pp, dp, ep) in (mostly(&[1, 2, 2, 4], 3), axis(2), axis(4), mostly(&[1, 1, 2, 4], 3)),
        (s, e) in (mostly(&[1, 2, 2, 4, 4, 8], 3), mostly(&[1, 1, 2, 4], 3)),
    ) {
        let trainer = format!("megatron:tp={tp},pp={pp},dp={dp},ep={ep}");
        let rollout = format!("sglang:tp={s},ep={e}");
        let case = Case::new(&sizes, &trainer, &[&rollout, "hf"]);
        if fits(&sizes, [tp, pp, dp, ep].map(u64::from), [s, e].map(u64::from)) {
            cover::check(&sizes, &case);
        } else {
            let refused = RemapPlan::compile(&case.model, &case.trainer, &case.rollouts);
            let is_misfit = matches!(refused, Err(LayoutError::AxisMisfit { .. }));
            prop_assert!(is_misfit, "{:?} {} {}", sizes, trainer, rollout);
        }
    }

    #[test]
    fn ly4_no_text_makes_the_parsers_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<driftless_layout::TrainerLayout>();
        let _ = text.parse::<driftless_layout::RolloutLayout>();
        let _ = driftless_layout::ModelConfig::from_json(&text);
    }

    #[test]
    fn texts_come_back_as_they_were_written(
        (tp, pp, dp, ep) in (axis(40), axis(40), axis(40), axis(40)),
        router in prop::sample::select(vec!["", ",router=fp32", ",router=bf16"]),
    ) {
        let trainer: driftless_layout::TrainerLayout =
            format!("megatron:ep={ep},dp={dp},pp={pp},tp={tp}{router}").parse().unwrap();
        prop_assert_eq!(&trainer.to_string().parse::<driftless_layout::TrainerLayout>().unwrap(), &trainer);
        let rollout: driftless_layout::RolloutLayout = format!("sglang:ep={ep},tp={tp}{router}").parse().unwrap();
        prop_assert_eq!(&rollout.to_string().parse::<driftless_layout::RolloutLayout>().unwrap(), &rollout);
    }
}
