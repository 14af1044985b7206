//! What plans say of themselves: numbers that are counted here once more, and a picture that is well formed.

use crate::configs::{Sizes, plan};
use driftless_layout::{DenseGroup, Spread};

#[test]
fn a_summary_counts_what_the_plan_holds() {
    // Two ranks that own half of the rows each, three receivers: an even share, and a whole copy.
    let plan = plan(&Sizes::dense(), "fsdp:world=2", &["vllm:tp=2", "hf"]);
    let summary = plan.summary();
    let elements: u64 = plan.params().iter().map(driftless_layout::ParamMeta::elements).sum();
    assert_eq!((summary.parameters, summary.elements, summary.bytes), (47, elements, 2 * elements));
    assert_eq!((summary.senders, summary.idle_senders), (2, 0));
    assert_eq!((summary.replicas, summary.receivers, summary.edges), (2, 3, 6));
    let fragments = plan.senders().iter().flat_map(|sender| &sender.edges).map(|edge| edge.fragments.len());
    assert_eq!(summary.fragments, fragments.sum::<usize>() as u64);
    // One piece of each parameter with each of the two ranks; whole copies have one box each.
    assert_eq!(summary.source_boxes, 2 * 47);
    let mut held = 0;
    for receiver in plan.replicas().iter().flat_map(|replica| &replica.receivers) {
        for tensor in &receiver.tensors {
            held += tensor.boxes.iter().map(|place| 2 * place.canonical.elements()).sum::<u64>();
        }
    }
    assert_eq!(summary.received_bytes, held);
    assert!((summary.replication - held as f64 / summary.bytes as f64).abs() < 1e-12);
    let Spread { least, median, most } = summary.bytes_per_edge;
    assert!(least <= median && median <= most && 6 * least <= held && held <= 6 * most);
    assert_eq!(summary.dense, []);
    assert_eq!(summary.digest, plan.digest());
}

#[test]
fn a_summary_tells_idle_senders_and_what_always_goes_dense() {
    let plan = plan(&Sizes::moe(), "hsdp:world=4,replicas=2,router=fp32", &["hf"]);
    let summary = plan.summary();
    assert_eq!((summary.senders, summary.idle_senders, summary.edges), (4, 2, 2));
    let names = "model.layers.*.mlp.gate.weight".to_owned();
    assert_eq!(summary.dense, [DenseGroup { names, parameters: 4, elements: 4 * 8 * 12 }]);
    assert!((summary.replication - 1.0).abs() < 1e-12);
    let text = summary.to_string();
    assert!(
        text.contains("4, of which 2 own nothing") && text.contains(&plan.digest().to_string()),
        "{text}"
    );
    let json = serde_json::to_value(&summary).unwrap();
    assert_eq!(json["digest"], plan.digest().to_string());
    assert_eq!(json["bytes_per_edge"]["most"], summary.bytes_per_edge.most);
}

#[test]
fn the_picture_has_a_row_a_column_and_a_bar_for_everyone() {
    let plan = plan(&Sizes::moe(), "megatron:tp=2,pp=2,dp=2", &["vllm:tp=2,pp=2", "hf"]);
    let svg = plan.svg();
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.ends_with("</svg>\n"));
    for (open, close) in
        [("<svg ", "</svg>"), ("<g>", "</g>"), ("<text ", "</text>"), ("<title>", "</title>")]
    {
        assert_eq!(svg.matches(open).count(), svg.matches(close).count(), "{open}");
    }
    for sender in plan.senders() {
        assert!(svg.contains(&format!(">{} owns ", sender.name)));
        for edge in &sender.edges {
            let to = &plan.receiver(edge.receiver).name;
            let told = format!("<title>{} to {to}: ", sender.name);
            assert_eq!(svg.matches(&told).count(), 1, "{told}");
        }
    }
    assert_eq!(svg.matches("<g>").count() as u64, plan.summary().edges);
    assert!(svg.contains("trainer: megatron:tp=2,pp=2,dp=2") && svg.contains("experts"));
    assert!(svg.contains("rollout0: vllm:tp=2,pp=2") && svg.contains("rollout1: hf"));
    // A plan of nothing is a picture all the same.
    assert!(crate::configs::plan(&Sizes::dense(), "hf", &[]).svg().contains("0 receivers in 0 replicas"));
}
