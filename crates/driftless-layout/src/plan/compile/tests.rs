//! Merging where today's layouts do not lead: gaps, other columns, other boxes.

use super::*;
use crate::MAX_FRAGMENT_ELEMENTS;
use crate::{ModelConfig, ServedDtypes};
use driftless_types::ParamId;

const WHOLE: Longest = Longest(MAX_FRAGMENT_ELEMENTS);

fn model() -> Model {
    let config = ModelConfig::from_json(
        r#"{"model_type": "qwen3", "vocab_size": 64, "hidden_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8}"#,
    );
    Model::new(config.unwrap(), &ServedDtypes::default()).unwrap()
}

fn destination(canonical: Box2, dst_offset: u64) -> Destination {
    let receiver = ReceiverId { replica: ReplicaId(0), rank: 0 };
    let place = DestBox { param: ParamId(0), canonical, dst_offset, dst_row_stride: 8 };
    Destination { receiver, tensor: 0, place, first_in_replica: true }
}

/// The boxes that remain of `boxes`, all for one destination.
fn merged(boxes: &[Box2]) -> Vec<Box2> {
    let to = destination(Box2::new(0, 64, 0, 8), 0);
    let part = |&canonical: &Box2| Part {
        to: &to,
        canonical,
        source: SourceRun { tensor: 0, src_offset: 0, src_row_stride: 8, box_row: 0, rows: canonical.rows },
        cells: vec![0],
    };
    let fragments = merge(&model(), boxes.iter().map(part).collect(), WHOLE);
    fragments.into_iter().map(|(_, fragment)| fragment.canonical).collect()
}

#[test]
fn rows_join_in_any_order_but_not_over_a_gap() {
    let below = [Box2::new(4, 2, 0, 8), Box2::new(0, 4, 0, 8)];
    assert_eq!(merged(&below), [Box2::new(0, 6, 0, 8)]);
    let apart = [Box2::new(0, 3, 0, 8), Box2::new(4, 2, 0, 8)];
    assert_eq!(merged(&apart), apart);
}

#[test]
fn other_columns_do_not_join() {
    let narrower = [Box2::new(0, 4, 0, 4), Box2::new(4, 2, 0, 8)];
    assert_eq!(merged(&narrower), narrower);
    let shifted = [Box2::new(0, 4, 0, 4), Box2::new(4, 2, 4, 4)];
    assert_eq!(merged(&shifted), shifted);
}

#[test]
fn other_destination_boxes_do_not_join() {
    let (above, below) = (Box2::new(0, 4, 0, 8), Box2::new(4, 4, 0, 8));
    let places = [destination(above, 0), destination(below, 800)];
    let part = |to| {
        let source = SourceRun { tensor: 0, src_offset: 0, src_row_stride: 8, box_row: 0, rows: 4 };
        Part { to, canonical: to.place.canonical, source, cells: vec![0] }
    };
    let fragments = merge(&model(), places.iter().map(part).collect(), WHOLE);
    let offsets: Vec<_> = fragments.iter().map(|(_, fragment)| fragment.dst_offset).collect();
    assert_eq!(offsets, [0, 800]);
}
