//! Steps made by PyTorch itself: nothing is missed, with the right family and without knowing it.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its vectors has failed")]

use driftless_numerics::conformance::Tally;
use driftless_numerics::{Family, GroupStep, Hyperparameters, Rule, StepChange, bf16, check_gates};
use driftless_types::Fqn;
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/adamw");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "safetensors")).collect();
    files.sort();
    files
}

struct Recorded {
    step: GroupStep,
    tensors: BTreeMap<String, Vec<f32>>,
}

impl Recorded {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let text = metadata.metadata().clone().unwrap();
        let number = |key: &str| text[key].parse::<f64>().unwrap();
        let hyper = Hyperparameters {
            lr: number("lr"),
            beta1: number("beta1"),
            beta2: number("beta2"),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
        };
        let step = GroupStep::new(text["step"].parse().unwrap(), hyper);
        let views = SafeTensors::deserialize(&bytes).unwrap();
        let floats =
            |data: &[u8]| data.as_chunks::<4>().0.iter().map(|&word| f32::from_le_bytes(word)).collect();
        let tensors = views.iter().map(|(name, view)| (name.to_owned(), floats(view.data()))).collect();
        Self { step, tensors }
    }

    /// Steps, moments as the update used them: with AMSGrad the running maximum.
    fn elements(&self) -> impl Iterator<Item = [f32; 4]> {
        let second = self.tensors.get("max_exp_avg_sq").unwrap_or_else(|| &self.tensors["exp_avg_sq"]);
        let moments = self.tensors["exp_avg"].iter().zip(second);
        let masters = self.tensors["before"].iter().zip(&self.tensors["after"]);
        masters.zip(moments).map(|((&before, &after), (&m, &v))| [before, after, m, v])
    }
}

#[test]
fn nu2_nothing_that_torch_changed_is_missed() {
    assert_eq!(files().len(), 22);
    for family in [Family::Agnostic, Family::Torch] {
        let mut total = Tally::default();
        for path in files() {
            let recorded = Recorded::read(&path);
            let rule = Rule::new(&Fqn::from("w"), family, &recorded.step).unwrap();
            let mut tally = Tally::default();
            for [before, after, m, v] in recorded.elements() {
                let changed = bf16::cast(before) != bf16::cast(after);
                tally.record(changed, rule.is_certified_unchanged(after, m, v), || {
                    format!("{before} {after}")
                });
            }
            assert_eq!(tally.missed, 0, "{family} misses in {}: {:?}", path.display(), tally.first_miss);
            total.merge(tally);
        }
        assert!(total.changed > 5000);
    }
}

/// Why the family is part of the handshake: a decay in another place misses an element of these files.
#[test]
fn the_rule_of_another_family_misses_what_torch_changed() {
    for family in [Family::TorchFusedCuda, Family::Apex, Family::DeepspeedCpu] {
        let mut tally = Tally::default();
        for recorded in files().iter().map(|path| Recorded::read(path)) {
            let rule = Rule::new(&Fqn::from("w"), family, &recorded.step).unwrap();
            for [before, after, m, v] in recorded.elements() {
                let changed = bf16::cast(before) != bf16::cast(after);
                tally.record(changed, rule.is_certified_unchanged(after, m, v), String::new);
            }
        }
        assert!(tally.missed > 0, "{family}: {tally:?}");
    }
}

/// Rows that no gradient reached yet: an unknown trainer's zeros are only certified once the masters are audited.
#[test]
fn nu4_an_audit_certifies_idle_zeros() {
    let path = files().into_iter().find(|path| path.to_string_lossy().contains("single-zero")).unwrap();
    let recorded = Recorded::read(&path);
    let rule = Rule::new(&Fqn::from("w"), Family::Agnostic, &recorded.step).unwrap();
    let audited = rule.clone().with_audited_masters();
    let [mut plain, mut spared] = [Tally::default(), Tally::default()];
    for [before, after, m, v] in recorded.elements() {
        assert_eq!(before.to_bits(), 0);
        let changed = bf16::cast(before) != bf16::cast(after);
        plain.record(changed, rule.is_certified_unchanged(after, m, v), String::new);
        spared.record(changed, audited.is_certified_unchanged(after, m, v), String::new);
    }
    assert!(plain.surplus > 1000 && plain.missed == 0, "{plain:?}");
    assert!(spared.surplus == 0 && spared.missed == 0 && spared.changed > 100, "{spared:?}");
}

#[test]
fn nu1_every_recorded_step_passes_its_gates() {
    let group = Fqn::from("w");
    for path in files() {
        let recorded = Recorded::read(&path);
        let change = check_gates(&group, recorded.step.step - 1, &recorded.step);
        assert_eq!(change, Ok(StepChange::Stepped), "{}", path.display());
        let rule = Rule::new(&group, Family::Agnostic, &recorded.step).unwrap();
        for [_, _, m, v] in recorded.elements() {
            assert!(rule.update_within_bound(m, v), "{}: {:e}", path.display(), rule.update(m, v));
        }
    }
}

/// Why the certified rule is there: an inverse in double precision misses an element of these files.
#[test]
#[expect(clippy::cast_possible_truncation, reason = "the plain inverse rounds twice")]
fn the_plain_inverse_misses_what_torch_changed() {
    let mut tally = Tally::default();
    for path in files() {
        let recorded = Recorded::read(&path);
        let Hyperparameters { lr, beta1, beta2, eps, weight_decay } = recorded.step.hyper.clone();
        let power = |beta: f64| beta.powf(f64::from(u32::try_from(recorded.step.step).unwrap()));
        for [before, after, m, v] in recorded.elements() {
            let changed = bf16::cast(before) != bf16::cast(after);
            let denominator = (f64::from(v) / (1.0 - power(beta2))).sqrt() + eps;
            let update = lr / (1.0 - power(beta1)) * f64::from(m) / denominator;
            let inverse = (f64::from(after) + update) / (1.0 - lr * weight_decay);
            tally.record(changed, bf16::cast(inverse as f32) == bf16::cast(after), String::new);
        }
    }
    assert!(tally.missed > 0, "{tally:?}");
}
