//! Which layers a pipeline stage holds.

use crate::config::ModelConfig;
use driftless_types::index_of;
use std::ops::Range;

/// Consecutive stages of these sizes, as ranges of layers.
pub(crate) fn consecutive(sizes: impl IntoIterator<Item = u64>) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |size| {
        let first = end;
        end += index_of(size);
        first..end
    };
    sizes.into_iter().map(range).collect()
}

/// Which stages of an engine take one layer more when the layers do not divide evenly.
#[derive(Clone, Copy)]
pub(crate) enum Remainder {
    /// From the last stage but one backwards: the last one has the output layer already.
    BeforeLast,
    /// The last stages.
    Last,
}

/// The layers of each of `stages` stages of an engine.
pub(crate) fn of_engine(config: &ModelConfig, stages: u64, remainder: Remainder) -> Vec<Range<usize>> {
    let (each, more) = (config.layer_count() / stages, config.layer_count() % stages);
    let has_more = |stage: u64| match remainder {
        Remainder::BeforeLast => (stages - 1 - more..stages - 1).contains(&stage),
        Remainder::Last => stage >= stages - more,
    };
    consecutive((0..stages).map(|stage| each + u64::from(has_more(stage))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(layers: u64, stages: u64, remainder: Remainder) -> Vec<usize> {
        let config = format!(
            r#"{{"model_type": "qwen3", "vocab_size": 1, "hidden_size": 1, "num_hidden_layers": {layers},
                "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 1}}"#
        );
        let ranges = of_engine(&ModelConfig::from_json(&config).unwrap(), stages, remainder);
        assert_eq!(ranges.iter().map(|range| range.len() as u64).sum::<u64>(), layers);
        ranges.iter().map(ExactSizeIterator::len).collect()
    }

    #[test]
    fn the_first_engine_spares_its_last_stage_and_the_second_fills_it() {
        assert_eq!(sizes(36, 8, Remainder::BeforeLast), [4, 4, 4, 5, 5, 5, 5, 4]);
        assert_eq!(sizes(36, 8, Remainder::Last), [4, 4, 4, 4, 5, 5, 5, 5]);
        assert_eq!(sizes(7, 2, Remainder::BeforeLast), [4, 3]);
        assert_eq!(sizes(7, 2, Remainder::Last), [3, 4]);
        assert_eq!(sizes(7, 4, Remainder::BeforeLast), [2, 2, 2, 1]);
        assert_eq!(sizes(8, 4, Remainder::Last), [2, 2, 2, 2]);
        assert_eq!(sizes(3, 1, Remainder::Last), [3]);
    }
}
