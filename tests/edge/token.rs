//! Tokens of this service: its ring of keys.
use std::time::Duration;

use steadfast::{
    time::Timestamp,
    token::{Algorithm, Key, KeyRing, SignError, TokenReason},
};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const S: fn(u64) -> Duration = Duration::from_secs;

fn key(kid: &str) -> Key {
    Key::generate(kid).unwrap()
}

fn reason(ring: &KeyRing, token: &str) -> Option<TokenReason> {
    ring.verify::<u32>("t+jwt", "a", NOW, token).err().map(|refused| refused.reason())
}

// Guarantee: token 1.
#[test]
fn a_ring_without_a_safe_key_is_refused() {
    assert!(KeyRing::new([]).unwrap_err().to_string().contains("must not be empty"));
    assert!(KeyRing::new([key("a"), key("a")]).unwrap_err().to_string().contains("two keys of one id"));
    assert!(Key::secret("a", &[7; 31]).unwrap_err().to_string().contains("32 bytes"));
    assert!(Key::secret("", &[7; 32]).unwrap_err().to_string().contains("kid"));
    assert!(Key::secret("a", &[7; 32]).is_ok());
    for bytes in [&[0; 0][..], &[1; 31], &[1; 33], b"-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----"] {
        assert!(Key::private("a", bytes).is_err() && Key::public("a", bytes).is_err());
    }
}

// Guarantee: token 2.
#[test]
fn the_newest_key_signs_all_verify_and_a_clone_rotates_with_its_ring() {
    let (one, two) = (key("one"), key("two"));
    let ring = KeyRing::new([one.clone()]).unwrap();
    let host = KeyRing::new([one.to_public().unwrap()]).unwrap();
    let old = ring.clone().sign("t+jwt", "a", NOW + S(9), &7).unwrap();
    assert_eq!(reason(&host, &old), None);
    ring.clone().replace([two.clone(), one.clone()]).unwrap();
    let new = ring.sign("t+jwt", "a", NOW + S(9), &8).unwrap();
    assert_eq!((reason(&ring, &old), reason(&ring, &new)), (None, None));
    assert_eq!(reason(&host, &new), Some(TokenReason::Key), "the host has the old key alone");
    host.replace([two.to_public().unwrap()]).unwrap();
    assert_eq!((reason(&host, &old), reason(&host, &new)), (Some(TokenReason::Key), None));
    assert!(ring.replace([]).is_err() && ring.keys().len() == 2, "nothing has changed");
    assert_eq!(host.sign("t+jwt", "a", NOW, &1), Err(SignError::NoPrivateKey));
    // A secret of the same id, of which each holder could sign.
    let secret = KeyRing::new([Key::secret("two", two.public_bytes().unwrap()).unwrap()]).unwrap();
    let forged = secret.sign("t+jwt", "a", NOW + S(9), &8).unwrap();
    assert_eq!(reason(&host, &forged), Some(TokenReason::Algorithm));
    assert_eq!(reason(&secret, &forged), None);
    assert!(!format!("{ring:?} {secret:?}").contains("DecodingKey") && format!("{ring:?}").contains("two"));
}

#[test]
fn type_audience_and_end_are_compared() {
    let ring = KeyRing::new([key("a")]).unwrap();
    let token = ring.sign("t+jwt", "a", NOW + S(10), &7).unwrap();
    let verify = |typ, audience, now| ring.verify::<u32>(typ, audience, now, &token).map_err(|e| e.reason());
    assert_eq!(verify("t+jwt", "a", NOW), Ok(7));
    assert_eq!(verify("T+JWT", "a", NOW), Err(TokenReason::Malformed));
    assert_eq!(verify("t+jwt", "b", NOW), Err(TokenReason::Audience));
    assert_eq!(verify("t+jwt", "a", NOW + S(39)), Ok(7));
    assert_eq!(verify("t+jwt", "a", NOW + S(40)), Err(TokenReason::Expired));
    assert_eq!(ring.verify::<String>("t+jwt", "a", NOW, &token).unwrap_err().reason(), TokenReason::Malformed);
    assert_eq!(ring.keys()[0].algorithm(), Algorithm::EdDsa);
}

#[test]
fn a_private_key_is_read_from_pem_and_from_der() {
    // RFC 8410, section 10.3, without its attributes.
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
    let key = Key::private("a", pem.as_bytes()).unwrap();
    let public = key.public_bytes().unwrap();
    assert_eq!(crate::base64(public), "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE");
    let ring = KeyRing::new([key.clone()]).unwrap();
    let host = KeyRing::new([Key::public("a", public).unwrap()]).unwrap();
    assert_eq!(reason(&host, &ring.sign("t+jwt", "a", NOW, &1).unwrap()), None);
    assert!(key.signs() && !host.keys()[0].signs());
}
