//~ to be a future that resolves to `Result<_, _>`, but it resolves to `u8`
//~ to implement `steadfast::call::Operation`
fn main() {
    let _ = steadfast::Pipeline::new().call(|| async { 7_u8 });
}
