//! What a plan amounts to, in numbers.

use super::{Edge, RemapPlan};
use crate::model::ParamMeta;
use driftless_types::{Dtype, PlanDigest, element_offset};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;

/// The size of a plan. Bytes are those of served weights, as if every element were sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanSummary {
    /// Canonical parameters.
    pub parameters: u64,
    /// Canonical elements.
    pub elements: u64,
    /// Bytes of one copy of the model.
    pub bytes: u64,
    /// Trainer ranks.
    pub senders: u64,
    /// Trainer ranks that own nothing and send nothing.
    pub idle_senders: u64,
    /// Rollout replicas.
    pub replicas: u64,
    /// Rollout ranks of all replicas.
    pub receivers: u64,
    /// Canonical boxes with one sender, one receiver and one affine destination each.
    pub fragments: u64,
    /// Boxes that senders own.
    pub source_boxes: u64,
    /// Boxes that receivers hold.
    pub destination_boxes: u64,
    /// Pairs of a sender and a receiver with fragments between them.
    pub edges: u64,
    /// Bytes of one edge.
    pub bytes_per_edge: Spread,
    /// Bytes of all receivers together: what a version takes if all of it goes dense.
    pub received_bytes: u64,
    /// How many copies of an element there are on average over all receivers: `received_bytes / bytes`.
    pub replication: f64,
    /// Parameters that always go dense, because they are served in FP32; by name with `*` for numbers.
    pub dense: Vec<DenseGroup>,
    /// The plan's digest; as text, lower-case hexadecimal.
    #[serde(serialize_with = "as_text")]
    pub digest: PlanDigest,
}

/// The least, the median (of two, the lower) and the most; all 0 if there is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Spread {
    /// The least.
    pub least: u64,
    /// The median.
    pub median: u64,
    /// The most.
    pub most: u64,
}

/// Parameters of one kind that always go dense.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DenseGroup {
    /// Their names, with `*` where they differ in a number.
    pub names: String,
    /// How many there are.
    pub parameters: u64,
    /// Their canonical elements together.
    pub elements: u64,
}

/// Served bytes of one edge.
pub(super) fn edge_bytes(edge: &Edge) -> u64 {
    edge.fragments.iter().map(|fragment| bytes(fragment.dtype, fragment.elements())).sum()
}

pub(super) const fn bytes(dtype: Dtype, elements: u64) -> u64 {
    elements * element_offset(dtype.bytes())
}

pub(super) fn of_plan(plan: &RemapPlan) -> PlanSummary {
    let receivers = || plan.replicas().iter().flat_map(|replica| &replica.receivers);
    let pieces = plan.senders().iter().flat_map(|sender| &sender.tensors).map(|tensor| tensor.pieces.len());
    let boxes = receivers().flat_map(|receiver| &receiver.tensors).map(|tensor| tensor.boxes.len());
    let edges: Vec<u64> = plan.senders().iter().flat_map(|sender| &sender.edges).map(edge_bytes).collect();
    let model_bytes = plan.params().iter().map(|meta| bytes(meta.dtype, meta.elements())).sum();
    let received_bytes = edges.iter().sum();
    PlanSummary {
        parameters: element_offset(plan.params().len()),
        elements: plan.params().iter().map(ParamMeta::elements).sum(),
        bytes: model_bytes,
        senders: element_offset(plan.senders().len()),
        idle_senders: element_offset(plan.senders().iter().filter(|sender| sender.edges.is_empty()).count()),
        replicas: element_offset(plan.replicas().len()),
        receivers: element_offset(receivers().count()),
        fragments: plan.fragment_count().into(),
        source_boxes: element_offset(pieces.sum()),
        destination_boxes: element_offset(boxes.sum()),
        edges: element_offset(edges.len()),
        bytes_per_edge: spread(edges),
        received_bytes,
        replication: ratio(received_bytes, model_bytes),
        dense: dense(plan.params()),
        digest: plan.digest(),
    }
}

fn spread(mut values: Vec<u64>) -> Spread {
    values.sort_unstable();
    match values[..] {
        [] => Spread::default(),
        [least, ..] => {
            Spread { least, median: values[(values.len() - 1) / 2], most: values[values.len() - 1] }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for readers: 53 bits are plenty")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

fn dense(params: &[ParamMeta]) -> Vec<DenseGroup> {
    let mut groups: BTreeMap<String, DenseGroup> = BTreeMap::new();
    for meta in params.iter().filter(|meta| meta.dtype == Dtype::Fp32) {
        let names = without_numbers(meta.fqn.as_str());
        let empty = DenseGroup { names: names.clone(), parameters: 0, elements: 0 };
        let group = groups.entry(names).or_insert(empty);
        group.parameters += 1;
        group.elements += meta.elements();
    }
    groups.into_values().collect()
}

/// A name with `*` for each part that is a number.
fn without_numbers(name: &str) -> String {
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<_> = name.split('.').map(|part| if is_number(&part) { "*" } else { part }).collect();
    parts.join(".")
}

fn as_text<S: Serializer>(digest: &PlanDigest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

/// A count of bytes with a binary unit, four digits at the most.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let power = (0..units.len() - 1).find(|power| self.0 >> (10 * (power + 1)) == 0);
        let power = power.unwrap_or(units.len() - 1);
        match power {
            0 => write!(f, "{} B", self.0),
            _ => write!(f, "{:.1} {}", ratio(self.0, 1 << (10 * power)), units[power]),
        }
    }
}

impl fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { least, median, most } = self.bytes_per_edge;
        writeln!(
            f,
            "model        {} parameters, {} elements, {}",
            self.parameters,
            self.elements,
            Bytes(self.bytes)
        )?;
        writeln!(f, "senders      {}, of which {} own nothing", self.senders, self.idle_senders)?;
        writeln!(f, "receivers    {} in {} replicas", self.receivers, self.replicas)?;
        writeln!(f, "fragments    {}", self.fragments)?;
        writeln!(f, "boxes        {} owned, {} held", self.source_boxes, self.destination_boxes)?;
        writeln!(
            f,
            "edges        {}: {} least, {} median, {} most",
            self.edges,
            Bytes(least),
            Bytes(median),
            Bytes(most)
        )?;
        writeln!(f, "replication  {:.2}: {} at all receivers", self.replication, Bytes(self.received_bytes))?;
        for group in &self.dense {
            writeln!(
                f,
                "always dense {} ({} parameters, {} elements)",
                group.names, group.parameters, group.elements
            )?;
        }
        if self.dense.is_empty() {
            writeln!(f, "always dense nothing")?;
        }
        write!(f, "plan digest  {}", self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_two_is_the_lower() {
        assert_eq!(spread(vec![]), Spread::default());
        assert_eq!(spread(vec![7, 3]), Spread { least: 3, median: 3, most: 7 });
        assert_eq!(spread(vec![9, 1, 5]), Spread { least: 1, median: 5, most: 9 });
    }

    #[test]
    fn bytes_have_the_unit_below_which_they_are_not_one() {
        let shown =
            [0, 1023, 1024, 1536, 1 << 20, (5 << 30) + (1 << 29), u64::MAX].map(|n| Bytes(n).to_string());
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.5 GiB", "16777216.0 TiB"]);
    }

    #[test]
    fn numbers_of_names_are_left_out() {
        assert_eq!(without_numbers("model.layers.12.mlp.experts.3.w1x"), "model.layers.*.mlp.experts.*.w1x");
    }
}
