//~ is not an operation
//~ write a closure without arguments that returns the future of a `Result`: `|| async { .. }`
//~ to implement `steadfast::call::Operation`
fn main() {
    let _ = steadfast::Pipeline::new().call(async { Ok::<u8, ()>(7) });
}
