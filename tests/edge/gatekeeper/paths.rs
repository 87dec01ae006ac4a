//! Paths that two programs might read differently.
use steadfast::http::strict_path;

/// Forms of `../` and of separators in the lists of PayloadsAllTheThings, "Directory Traversal", and of the parser
/// confusions of O. Tsai, "Breaking Parser Logic", Black Hat 2018.
const LISTED: [&str; 44] = [
    "/../",
    "/..",
    "/a/..",
    "/a/../b",
    "/./",
    "/.",
    "/a/.",
    "/a/./b",
    "/..;/",
    "/..;/manager",
    "/a/..;/b",
    "/.;/../b",
    "/....//",
    "/...//",
    "/..\\",
    "/..\\..\\",
    "/..././",
    "/...\\.\\",
    "\\..\\",
    "/%2e%2e/",
    "/%2e%2e%2f",
    "/%2E%2E/",
    "/.%2e/",
    "/%2e./",
    "/..%2f",
    "/..%5c",
    "/%2e%2e%5c",
    "/%252e%252e%252f",
    "/%252e%252e%255c",
    "/..%252f",
    "/..%255c",
    "/%%32%65%%32%65%%32%66",
    "/..%c0%af",
    "/%uff0e%uff0e%u2215",
    "/%c0%2e%c0%2e%c0%af",
    "/a%00.png",
    "/a%0d%0aX: y",
    "/a%2fb",
    "/a%5cb",
    "//",
    "/a//b",
    "//evil.example/",
    "/a\u{0}b",
    "/a%",
];

// Guarantee: tower 7.
#[test]
fn the_listed_forms_of_traversal_are_refused_and_plain_paths_are_not() {
    for path in LISTED {
        assert!(strict_path(path).is_err(), "{path}");
    }
    for path in ["", "a", "*", "/a b", "/a\tb", "/ü", "/a%2", "/a%zz", "/a%+1", "/a\u{7f}", "/a#b", "/a?b", "/%7f"] {
        assert!(strict_path(path).is_err(), "{path}");
    }
    for path in
        ["/", "/a", "/a/", "/a.b/c.d", "/.well-known/x", "/a-_~!$&'()*+,=:@b", "/a%20b", "/%C3%BC", "/a.", "/a/b."]
    {
        assert_eq!(strict_path(path), Ok(path));
    }
}
