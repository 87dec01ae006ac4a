//! The vectors of RFC 7515 and RFC 8037, and the forms that are refused.
#![allow(clippy::unwrap_used, reason = "tests")]
use super::{
    Algorithm, Compact, TokenReason,
    crypto::{KeyType, VerifyKey, from_base64},
    jwk::KeySet,
};

const JOE: &str = "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

fn bytes(text: &str) -> Vec<u8> {
    from_base64(text).unwrap()
}

/// Returns the vectors: a name, the key, and the token.
fn vectors() -> Vec<(&'static str, VerifyKey, String)> {
    let secret = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
    let modulus = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL\
                   -yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA\
                   9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8N\
                   Aco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    let rsa = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9u\
               JdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_e\
               SN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5\
               AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
    let (x, y) =
        (bytes("f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"), bytes("x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"));
    let ecdsa = "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    let ed25519 = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    vec![
        (
            "RFC 7515, A.1",
            VerifyKey::secret(&bytes(secret)),
            format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{JOE}.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
        ),
        (
            "RFC 7515, A.2",
            VerifyKey::rsa(&bytes(modulus), &[1, 0, 1]).unwrap(),
            format!("eyJhbGciOiJSUzI1NiJ9.{JOE}.{rsa}"),
        ),
        (
            "RFC 7515, A.3",
            VerifyKey::ecdsa(KeyType::P256, &x, &y).unwrap(),
            format!("eyJhbGciOiJFUzI1NiJ9.{JOE}.{ecdsa}"),
        ),
        (
            "RFC 8037, A.4",
            VerifyKey::ed25519(&bytes("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")).unwrap(),
            format!("eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.{ed25519}"),
        ),
    ]
}

// Guarantee: token 3.
#[test]
fn the_vectors_are_accepted_and_refused_with_any_bit_changed() {
    for (name, key, token) in vectors() {
        let read = Compact::read(&token, 4096).unwrap();
        assert!(read.verify(&key).is_ok(), "{name}");
        for (other, wrong, _) in vectors().iter().filter(|(other, ..)| *other != name) {
            assert!(read.verify(wrong).is_err(), "{name} by the key of {other}");
        }
        // Each character, except the last one of a part, whose last bits may be no part of it.
        for at in (0..token.len()).filter(|at| token.as_bytes()[*at] != b'.') {
            let changed = if token.as_bytes()[at] == b'A' { "B" } else { "A" };
            let mut bad = token.clone();
            bad.replace_range(at..=at, changed);
            let is_accepted = Compact::read(&bad, 4096).is_ok_and(|read| read.verify(&key).is_ok());
            assert!(!is_accepted, "{name}: {at}");
        }
    }
}

/// RFC 7519, section 6.1, and RFC 7515, A.5: a token without a signature.
#[test]
fn a_token_without_a_signature_is_refused_by_its_algorithm() {
    let reason = |token: String| Compact::read(&token, 4096).err().map(|refused| refused.reason());
    assert_eq!(reason(format!("eyJhbGciOiJub25lIn0.{JOE}.")), Some(TokenReason::Algorithm));
}

/// RFC 7515, appendix E: an extension that must be understood, and is not.
#[test]
fn a_critical_extension_is_refused() {
    let header = super::crypto::to_base64(
        br#"{"alg":"ES256","crit":["http://example.invalid/UNDEFINED"],"http://example.invalid/UNDEFINED":true}"#,
    );
    let refused = Compact::read(&format!("{header}.{JOE}.AA"), 4096).err().unwrap();
    assert_eq!(refused.reason(), TokenReason::Malformed);
}

/// RFC 7517, A.1: a set of two keys, one of which is for encryption.
#[test]
fn a_published_set_has_the_keys_for_signatures() {
    let set = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
        "y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM","use":"enc","kid":"1"},
        {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"2011-04-29"}]}"#;
    let read = KeySet::read(set.as_bytes(), 2).unwrap();
    assert_eq!((read.keys.len(), read.left_out), (1, 1));
    assert!(read.keys[0].fits(Algorithm::EdDsa) && !read.keys[0].fits(Algorithm::Es256));
    assert!(KeySet::read(set.as_bytes(), 1).is_err() && KeySet::read(b"[[]]", 1).is_err());
}

#[test]
fn rsa_keys_are_between_two_and_eight_thousand_bits() {
    let modulus = |bytes: usize, first: u8| [vec![first], vec![0xff; bytes - 1]].concat();
    for (n, e, is_one) in [
        (modulus(256, 0x80), &[1, 0, 1][..], true),
        ([vec![0], modulus(256, 0x80)].concat(), &[0, 3][..], true),
        (modulus(256, 0x7f), &[1, 0, 1][..], false),
        (modulus(128, 0xff), &[1, 0, 1][..], false),
        (modulus(1024, 0x80), &[3][..], true),
        (modulus(1025, 1), &[3][..], false),
        (modulus(256, 0x80), &[1][..], false),
        (modulus(256, 0x80), &[1, 0, 0, 0, 1][..], false),
        ([modulus(255, 0x80), vec![2]].concat(), &[3][..], false),
        (modulus(256, 0x80), &[2][..], false),
        (modulus(256, 0x80), &[][..], false),
        (vec![], &[3][..], false),
        (vec![0; 300], &[3][..], false),
    ] {
        assert_eq!(VerifyKey::rsa(&n, e).is_some(), is_one, "{} bytes, {e:?}", n.len());
    }
}
