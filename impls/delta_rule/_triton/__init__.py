"""The delta rule in Triton: the inverses of all chunks, a walk through the chunks, and the way back.

Notation of every kernel here. A chunk has C steps and begins in the state S (K × V). With γ_t the product of
its gates up to step t and G_ts = γ_t / γ_s for s ≤ t:

    L = tril(diag(β) K Kᵀ, −1)            T = G ⊙ (I + L)⁻¹ = (I + G ⊙ L)⁻¹
    x = β (v − γ K S)                     y = T x
    o = γ Q S + (G ⊙ Q Kᵀ) y              S' = γ_C S + Kᵀ (γ_C/γ) y

The gates stay outside of the inverse, so it needs keys and β alone. Backward, with do and the gradient dS'
of the state after the chunk:

    dy = (G ⊙ Q Kᵀ)ᵀ do + (γ_C/γ) K dS'   dx = Tᵀ dy      dv = β dx
    dS = γ_C dS' + Qᵀ γ do − Kᵀ β γ dx

Through the inverse, d(G ⊙ L) = −tril(dx yᵀ, −1). (Yang, Kautz and Hatamizadeh, Gated delta networks, 2024.)
"""
