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
        prop::collection::vec(0u64..1, 0..2),
    )
        .prop_map(|(count, intermediate, sparse_step, dense_layers)| ExpertSizes {
            count,
            intermediate: 4 * intermediate,
            sparse_step,
            dense_layers,
        });
    (
        (1u64..140, 1u64..=6, 1u64..=5),
        (
            prop::sample::select(vec![1u64, 2, 2, 4, 3]),
            prop::sample::select(vec![1u64, 2, 4]),
            1u64..=4,
            1u64..=4,
        ),
        (any::<bool>(), prop::sample::select(vec!["qwen3", "qwen2", "llama"])),
        prop::option::of(experts),
    )
        .prop_map(
            |(
                (vocab, hidden, layers),
                (per_group, kv_heads, head_dim, intermediate),
                (tied, family),
                experts,
            )| Sizes {
                family: if experts.is_some() { "qwen3" } else { family },
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

/// Sizes that often fit, and now and then one that seldom does.
fn mostly(common: &'static [u32], odd: u32) -> impl Strategy<Value = u32> {
    prop_oneof![12 => prop::sample::select(common), 1 => Just(odd)]
}

/// The mesh of a Megatron trainer, and the part sizes of an uneven pipeline if it has one.
#[derive(Clone, Debug)]
struct Megatron {
    tp: u32,
    pp: u32,
    vpp: u32,
    dp: u32,
    ep: u32,
    etp: u32,
    layers: Option<Vec<u32>>,
    option: &'static str,
}

fn megatron() -> impl Strategy<Value = Megatron> {
    let layers = prop::option::weighted(0.3, prop::collection::vec(0u32..4, 1..4));
    let option = prop::sample::select(vec!["", "", ",zero=0", ",bucket=0", ",bucket=100"]);
    (
        (mostly(&[1, 2, 2, 4], 3), mostly(&[1, 1, 2], 4), mostly(&[1, 1, 2], 3), 1u32..=4),
        (mostly(&[1, 1, 2, 4], 3), mostly(&[1, 1, 2], 3)),
        (layers, option),
    )
        .prop_map(|((tp, pp, vpp, dp), (ep, etp), (layers, option))| {
            // A list of sizes says how many parts there are.
            let (pp, vpp) = match &layers {
                Some(sizes) => (u32::try_from(sizes.len()).unwrap(), 1),
                None => (pp, vpp),
            };
            Megatron { tp, pp, vpp, dp, ep, etp, layers, option }
        })
}

impl Megatron {
    fn text(&self) -> String {
        let Self { tp, pp, vpp, dp, ep, etp, layers, option } = self;
        let sizes = |sizes: &Vec<u32>| sizes.iter().map(u32::to_string).collect::<Vec<_>>().join("+");
        let layers = layers.as_ref().map_or_else(String::new, |layers| format!(",layers={}", sizes(layers)));
        format!("megatron:tp={tp},pp={pp},vpp={vpp},dp={dp},ep={ep},etp={etp}{layers}{option}")
    }

    /// Whether the rules let this model be cut this way, restated.
    fn fits(&self, sizes: &Sizes) -> bool {
        let [tp, pp, vpp, dp, ep, etp] =
            [self.tp, self.pp, self.vpp, self.dp, self.ep, self.etp].map(u64::from);
        let qkv_rows = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim;
        let experts = sizes.experts.as_ref().map_or(ep == 1 && etp == 1, |experts| {
            experts.count.is_multiple_of(ep) && experts.intermediate.is_multiple_of(etp)
        });
        let stages = match &self.layers {
            Some(layers) => layers.iter().copied().map(u64::from).sum::<u64>() == sizes.layers,
            None => sizes.layers.is_multiple_of(pp * vpp),
        };
        cuts(sizes, tp)
            && qkv_rows.is_multiple_of(tp)
            && (tp * dp).is_multiple_of(ep * etp)
            && experts
            && stages
    }
}

/// Whether attention and dense layers can be cut over `n` ranks.
fn cuts(sizes: &Sizes, n: u64) -> bool {
    let dense_layers = (0..sizes.layers).any(|layer| !sizes.is_expert_layer(layer));
    sizes.heads.is_multiple_of(n)
        && (sizes.kv_heads.is_multiple_of(n) || n.is_multiple_of(sizes.kv_heads))
        && (!dense_layers || sizes.intermediate.is_multiple_of(n))
}

#[derive(Clone, Debug)]
struct Engine {
    name: &'static str,
    tp: u32,
    pp: u32,
    ep: u32,
    option: &'static str,
}

fn engine() -> impl Strategy<Value = Engine> {
    let of_vllm =
        prop::sample::select(vec!["", ",placement=round-robin", ",w13=swapped,placement=round-robin"]);
    let of_sglang = prop::sample::select(vec!["", ",w13=swapped"]);
    let (tp, pp) = (mostly(&[1, 2, 2, 4, 4, 8], 3), mostly(&[1, 1, 2, 3], 5));
    (any::<bool>(), of_vllm, of_sglang, tp, pp, mostly(&[1, 1, 2, 4], 3), any::<bool>()).prop_map(
        |(is_vllm, of_vllm, of_sglang, tp, pp, ep, all)| {
            let ep = if is_vllm && all { tp } else { ep };
            let (name, option) = if is_vllm { ("vllm", of_vllm) } else { ("sglang", of_sglang) };
            Engine { name, tp, pp, ep, option }
        },
    )
}

impl Engine {
    fn text(&self) -> String {
        let Self { name, tp, pp, ep, option } = self;
        format!("{name}:tp={tp},pp={pp},ep={ep}{option}")
    }

    fn fits(&self, sizes: &Sizes) -> bool {
        let [tp, pp, ep] = [self.tp, self.pp, self.ep].map(u64::from);
        let experts = sizes.experts.as_ref().is_none_or(|experts| {
            let spread = match self.name {
                "vllm" => (ep == 1 || ep == tp) && ep <= experts.count,
                _ => tp.is_multiple_of(ep) && experts.count.is_multiple_of(ep),
            };
            spread && experts.intermediate.is_multiple_of(tp / ep)
        });
        let padded_vocab = sizes.vocab.div_ceil(64) * 64;
        cuts(sizes, tp) && padded_vocab.is_multiple_of(tp) && pp <= sizes.layers && experts
    }
}

/// A trainer that cuts Hugging Face modules: it fits every model.
pub(crate) fn data_parallel() -> impl Strategy<Value = String> {
    let worlds = 1u32..=9;
    prop_oneof![
        worlds.clone().prop_map(|world| format!("fsdp:world={world}")),
        (1u32..=4, 1u32..=3)
            .prop_map(|(shards, replicas)| format!("hsdp:world={},replicas={replicas}", shards * replicas)),
        (worlds, 1u32..=3, 1u32..=2).prop_map(|(world, stage, groups)| format!(
            "deepspeed:world={world},stage={stage},groups={groups}"
        )),
    ]
}

fn check_or_refused(sizes: &Sizes, fits: bool, trainer: &str, rollout: &str) -> Result<(), TestCaseError> {
    let case = Case::new(sizes, trainer, &[rollout, "hf"]);
    if fits {
        cover::check(sizes, &case);
        return Ok(());
    }
    let refused = RemapPlan::compile(&case.model, &case.trainer, &case.rollouts);
    let is_misfit = matches!(refused, Err(LayoutError::AxisMisfit { .. }));
    prop_assert!(is_misfit, "{:?} {} {}", sizes, trainer, rollout);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn ly1_ly2_ly4_every_element_arrives_or_the_misfit_is_refused(
        sizes in sizes(), megatron in megatron(), engine in engine(),
    ) {
        let fits = megatron.fits(&sizes) && engine.fits(&sizes);
        check_or_refused(&sizes, fits, &megatron.text(), &engine.text())?;
    }

    #[test]
    fn ly1_ly2_every_element_arrives_from_data_parallel_trainers(
        sizes in sizes(), trainer in data_parallel(), engine in engine(),
    ) {
        check_or_refused(&sizes, engine.fits(&sizes), &trainer, &engine.text())?;
    }

    #[test]
    fn ly4_no_text_makes_the_parsers_panic(text in "\\PC{0,40}") {
        let _ = text.parse::<driftless_layout::TrainerLayout>();
        let _ = text.parse::<driftless_layout::RolloutLayout>();
        let _ = driftless_layout::ModelConfig::from_json(&text);
    }

    #[test]
    fn texts_come_back_as_they_were_written(
        megatron in megatron(), other in data_parallel(), engine in engine(),
        router in prop::sample::select(vec!["", ",router=fp32", ",router=bf16"]),
    ) {
        for text in [megatron.text(), other] {
            let trainer: driftless_layout::TrainerLayout = format!("{text}{router}").parse().unwrap();
            prop_assert_eq!(&trainer.to_string().parse::<driftless_layout::TrainerLayout>().unwrap(), &trainer);
        }
        let rollout: driftless_layout::RolloutLayout = format!("{}{router}", engine.text()).parse().unwrap();
        prop_assert_eq!(&rollout.to_string().parse::<driftless_layout::RolloutLayout>().unwrap(), &rollout);
    }
}
