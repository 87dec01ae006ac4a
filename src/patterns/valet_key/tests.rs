//! The checks that need no store against a naive model.
use std::time::Duration;

use proptest::prelude::*;

use super::{KeyRefused, Operation, claims::Claims};
use crate::time::Timestamp;

const OPERATIONS: [Operation; 4] = [Operation::Get, Operation::Put, Operation::List, Operation::Delete];

fn segments() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("ab"), Just("b"), Just("a.b"), Just("%20")], 1..4)
}

fn claims(operation: Operation, path: String, iat: u64) -> Claims {
    let id = "AAAAAAAAAAAAAAAAAAAAAA".to_owned();
    Claims { id, operation, path, max_bytes: None, is_single_use: false, tag: None, iat, born: None }
}

proptest! {
    #[test]
    fn a_key_is_valid_for_what_a_naive_model_grants(
        (granted, is_folder) in (segments(), any::<bool>()),
        (asked, asks_folder) in (segments(), any::<bool>()),
        (of_key, of_request) in (0usize..4, 0usize..4),
        late in 0i64..700,
    ) {
        let slash = |is_folder: bool| if is_folder { "/" } else { "" };
        let (now, early) = (Timestamp::from_millis(1_000_000_000), Duration::from_secs(300));
        let iat = now.as_millis() + late as u64 * 1000;
        let claims = claims(OPERATIONS[of_key], granted.join("/") + slash(is_folder), iat);
        let path = format!("/{}{}", asked.join("/"), slash(asks_folder));
        let judged = claims.judge(OPERATIONS[of_request], &path, now, early);
        // The model compares lists of segments.
        let is_list = OPERATIONS[of_request] == Operation::List;
        let is_below = is_folder && asked.starts_with(&granted) && (asked.len() > granted.len() || asks_folder);
        let is_same = !is_folder && asked == granted && !asks_folder;
        let is_for = (is_below || is_same) && (is_list || !asks_folder);
        match judged {
            Ok(inner) => {
                prop_assert!(late <= 300 && of_key == of_request && is_for, "{path}");
                prop_assert_eq!(inner, &path[1..]);
            }
            Err(KeyRefused::Token(_)) => prop_assert!(late > 300),
            Err(KeyRefused::Operation) => prop_assert!(late <= 300 && of_key != of_request),
            Err(refused) => {
                prop_assert_eq!(refused, KeyRefused::Path);
                prop_assert!(late <= 300 && of_key == of_request && !is_for, "{} {}", claims.path, path);
            }
        }
    }

    #[test]
    fn a_revocation_holds_for_keys_that_were_first_issued_before_it(
        issued in 0u64..100_000,
        renewed in 0u64..100_000,
        revoked in 0u64..100_000,
    ) {
        let first = claims(Operation::Get, "a".to_owned(), issued);
        let next = Claims { iat: issued + renewed, born: Some(first.born()), ..first.clone() };
        prop_assert_eq!(first.is_revoked_at(revoked), issued <= revoked);
        prop_assert_eq!(next.is_revoked_at(revoked), issued <= revoked);
    }
}
