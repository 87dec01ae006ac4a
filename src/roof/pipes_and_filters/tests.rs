//! Lineage ids against a model: the list of the steps that led to a message.
use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::lineage::{LINEAGE, LONGEST, of, of_output, of_queue};
use crate::queue::MessageId;

/// A way of a message: the queue and the number of its first one, and the filter and the number of
/// each output.
fn any_way() -> impl Strategy<Value = (u8, u8, Vec<(u8, usize)>)> {
    (0..3u8, 0..4u8, prop::collection::vec((0..4u8, 0..3usize), 0..40))
}

const FILTERS: [&str; 4] = ["a", "a.1", "parse", "a-name-of-sixty-four-bytes-which-is-the-longest-that-a-filter-has"];

fn walk((queue, message, steps): &(u8, u8, Vec<(u8, usize)>)) -> String {
    let id = MessageId::from_numbers((*message).into(), 0);
    let mut headers = BTreeMap::new();
    for (filter, number) in steps {
        let id = of(&headers, of_queue(&queue.to_string()), &id).into_owned();
        headers.insert(LINEAGE.to_owned(), of_output(&id, FILTERS[usize::from(*filter)], *number));
    }
    of(&headers, of_queue(&queue.to_string()), &id).into_owned()
}

proptest! {
    #[test]
    fn two_messages_have_one_lineage_id_only_if_they_came_the_same_way(ways in prop::collection::vec(any_way(), 2..40)) {
        let mut seen = HashMap::new();
        for way in ways {
            let id = walk(&way);
            prop_assert_eq!(&id, &walk(&way), "it is the same in each attempt");
            prop_assert!(id.len() <= LONGEST && id.bytes().all(|byte| byte.is_ascii_graphic()), "{}", id);
            let other = seen.entry(id).or_insert_with(|| way.clone());
            prop_assert_eq!(&*other, &way);
        }
    }

    #[test]
    fn any_header_becomes_an_id_that_each_backend_accepts(header: String, number: usize) {
        let headers = BTreeMap::from([(LINEAGE.to_owned(), header.clone())]);
        let id = of(&headers, 1, &MessageId::new("7"));
        prop_assert!((1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()));
        let output = of_output(&id, FILTERS[3], number);
        prop_assert!((1..=LONGEST).contains(&output.len()) && output != *id);
    }
}

#[test]
fn an_id_of_128_bytes_is_kept_and_a_longer_one_is_hashed() {
    let of_length = |n: usize| {
        let headers = BTreeMap::from([(LINEAGE.to_owned(), "x".repeat(n))]);
        of(&headers, 1, &MessageId::new("7")).into_owned()
    };
    assert_eq!(of_length(128), "x".repeat(128));
    assert_eq!((of_length(129).len(), &of_length(129)[..1]), (33, "#"));
    assert_ne!(of_length(129), of_length(130));
    // 124 bytes and `/f.0`.
    assert_eq!(of_output(&"x".repeat(124), "f", 0).len(), 128);
    assert_eq!(of_output(&"x".repeat(125), "f", 0).len(), 33);
}
