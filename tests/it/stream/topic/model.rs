//! A topic beside a naive one: a vector of events.
use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use steadfast::{
    store::InMemoryStore,
    stream::{Appended, Bounds, Event, Position, Read, StoreTopic, Topic},
    time::block_on,
};

#[derive(Debug, Clone)]
enum Call {
    /// Sizes of the bodies, and ids.
    Append(Vec<(usize, Option<u8>)>),
    Read(u64, usize),
    Trim(u64),
    Bounds,
}

fn call() -> impl Strategy<Value = Call> {
    // Some bodies are larger than a row of the store.
    let size = prop_oneof![9 => 0..20_usize, 1 => 50_000..200_000_usize];
    let event = (size, proptest::option::weighted(0.3, 0..12_u8));
    prop_oneof![
        4 => proptest::collection::vec(event, 0..12).prop_map(Call::Append),
        4 => (1..80_u64, 1..20_usize).prop_map(|(from, max)| Call::Read(from, max)),
        1 => (0..80_u64).prop_map(Call::Trim),
        1 => Just(Call::Bounds),
    ]
}

#[derive(Default)]
struct Naive {
    first: u64,
    events: Vec<Event>,
    ids: BTreeMap<String, u64>,
}

impl Naive {
    fn append(&mut self, events: Vec<Event>) -> Vec<Appended> {
        let append = |event: Event| {
            if let Some(offset) = event.id.as_ref().and_then(|id| self.ids.get(id)) {
                return Appended::duplicate_of(Position::new(0, *offset));
            }
            let offset = self.events.len() as u64 + 1;
            self.ids.extend(event.id.clone().map(|id| (id, offset)));
            self.events.push(event);
            Appended::new(Position::new(0, offset))
        };
        events.into_iter().map(append).collect()
    }

    fn next(&self) -> u64 {
        self.events.len() as u64 + 1
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    // Guarantee: stream 16.
    #[test]
    fn a_topic_is_a_list_of_events(calls in proptest::collection::vec((call(), any::<bool>()), 1..40)) {
        let store = Arc::new(InMemoryStore::new());
        block_on(async {
            let mut handles = Vec::new();
            for _ in 0..2 {
                handles.push(StoreTopic::open(store.clone(), "t", 1).await.unwrap());
            }
            let mut naive = Naive { first: 1, ..Naive::default() };
            for (call, by_other) in calls {
                let topic = &handles[usize::from(by_other)];
                match call {
                    Call::Append(events) => {
                        let event = |(size, id): (usize, Option<u8>)| {
                            let event = Event::new(vec![b'x'; size]);
                            id.into_iter().fold(event, |event, id| event.id(id.to_string()))
                        };
                        let events: Vec<_> = events.into_iter().map(event).collect();
                        prop_assert_eq!(topic.append(0, events.clone()).await.unwrap(), naive.append(events));
                    }
                    Call::Read(from, max) => {
                        let found = topic.read(0, Read::from(from).max(max)).await.unwrap();
                        // A handle may still serve events that another one trimmed.
                        let first = found.first().map_or(from.max(naive.first), |event| event.position.offset);
                        prop_assert!((from..=from.max(naive.first)).contains(&first));
                        prop_assert!(found.len() <= max);
                        prop_assert!(!found.is_empty() || from.max(naive.first) >= naive.next());
                        prop_assert!(found.is_empty() || from < naive.next());
                        for (offset, event) in (first..).zip(found) {
                            prop_assert_eq!(event.position, Position::new(0, offset));
                            prop_assert_eq!(&event.event, &naive.events[offset as usize - 1]);
                        }
                    }
                    Call::Trim(before) => {
                        let first = before.clamp(naive.first, naive.next().max(naive.first));
                        prop_assert_eq!(topic.trim(0, before).await.unwrap(), first - naive.first);
                        naive.first = first;
                    }
                    Call::Bounds => {
                        prop_assert_eq!(topic.bounds(0).await.unwrap(), Bounds::new(naive.first, naive.next()));
                    }
                }
            }
            Ok(())
        })?;
    }
}
