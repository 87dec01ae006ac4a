//~ is not an operation
//~ write a closure without arguments that returns the future of a `Result`: `|| async { .. }`
fn main() {
    let _ = steadfast::Pipeline::new().call(steadfast::call::idempotent(async { Ok::<u8, ()>(7) }));
}
