"""How the report looks: one style sheet, light and dark, for a phone, a desk and paper.

The colours of verdicts are told apart by those who see no red or green: they differ in lightness,
and shapes and words say the same. Contrast with the ground is at least 4.5 to 1 for text.
"""

_LIGHT = (
    "--ink:#1c2024;--grey:#59616b;--faint:#dde1e6;--paper:#ffffff;--ground:#f5f6f8;"
    "--pays:#17724a;--costs:#b3261e;--same:#4b5a6b;--open:#8a5a00;--none:#6b7280;"
    "--pays-wash:#e3f3ea;--costs-wash:#fbe6e4;--open-wash:#fbf0dc;"
    "--series-1:#1f5fa8;--series-2:#b3541e;--series-3:#17724a;--series-4:#7a3fa0;"
    "--series-5:#00707a;--series-6:#8a5a00;"
)
_DARK = (
    "--ink:#e8eaed;--grey:#a4adb8;--faint:#353b44;--paper:#1a1e24;--ground:#121519;"
    "--pays:#5fcf9a;--costs:#ff8a80;--same:#a9b8ca;--open:#f0bf5a;--none:#9aa3ae;"
    "--pays-wash:#16352a;--costs-wash:#43211f;--open-wash:#3d3116;"
    "--series-1:#7db4f5;--series-2:#f5a06a;--series-3:#5fcf9a;--series-4:#c99bea;"
    "--series-5:#56c8d2;--series-6:#f0bf5a;"
)
VARIABLES = f":root{{{_LIGHT}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
# Letters stand out from lines that they lie on.
HALO = "paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round"

SHEET = f"""{VARIABLES}
:root{{color-scheme:light dark}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;text-size-adjust:100%}}
body{{margin:0;background:var(--ground);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;
overflow-wrap:break-word}}
main,header,footer{{max-width:1080px;margin:0 auto;padding:0 24px}}
header{{padding-top:40px}}
h1{{font-size:2rem;line-height:1.2;margin:0 0 8px}}
h2{{font-size:1.35rem;line-height:1.3;margin:0 0 10px}}
h3{{font-size:1.02rem;line-height:1.35;margin:22px 0 6px}}
p{{margin:0 0 12px;max-width:72ch}}
section{{background:var(--paper);border:1px solid var(--faint);border-radius:12px;
padding:22px 24px;margin:20px 0}}
.question{{color:var(--grey);font-size:1.08rem}}
.verdict{{font-size:1.25rem;line-height:1.4;font-weight:600;max-width:60ch}}
.facts{{display:flex;flex-wrap:wrap;gap:8px;list-style:none;padding:0;margin:14px 0}}
.facts li{{background:var(--paper);border:1px solid var(--faint);border-radius:8px;
padding:4px 12px;font-size:.9rem;overflow-wrap:anywhere}}
.facts li.costs{{background:var(--costs-wash);border-color:var(--costs)}}
nav{{font-size:.92rem;margin:14px 0}}
nav ul{{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:0}}
nav a{{display:inline-block;padding:4px 0}}
a{{color:var(--series-1)}}
a:focus-visible,summary:focus-visible,.scroll:focus-visible{{outline:2px solid var(--series-1);
outline-offset:2px}}
ul.points{{padding-left:1.15em;margin:0 0 12px}}
ul.points li{{margin:4px 0}}
ul.points li{{color:var(--ink)}}
ul.points li.pays::marker{{content:"● ";color:var(--pays)}}
ul.points li.costs::marker{{content:"■ ";color:var(--costs)}}
ul.points li.same::marker{{content:"◆ ";color:var(--same)}}
ul.points li.open::marker{{content:"○ ";color:var(--open)}}
ul.points li.none::marker{{content:"□ ";color:var(--none)}}
figure{{margin:18px 0}}
figure svg{{display:block;width:100%;height:auto;fill:var(--ink)}}
figure .wide{{max-width:920px}}
figure .narrow{{display:none}}
figure svg text{{{HALO}}}
figcaption{{color:var(--grey);font-size:.9rem;margin-top:6px;max-width:80ch}}
.scroll{{overflow-x:auto;margin-top:14px}}
table{{border-collapse:collapse;width:100%;font-size:.88rem;line-height:1.4;
font-variant-numeric:tabular-nums}}
caption,summary{{text-align:left;font-weight:600;padding:8px 0;font-size:.95rem}}
summary{{cursor:pointer}}
th,td{{text-align:left;vertical-align:top;padding:7px 12px 7px 0;
border-bottom:1px solid var(--faint)}}
thead th{{color:var(--grey);font-weight:600;font-size:.82rem;vertical-align:bottom}}
tbody th{{font-weight:500;min-width:11em}}
td{{min-width:4.5em}}
.tag{{display:inline-block;font-weight:600;white-space:nowrap}}
.tag::before{{content:"";display:inline-block;width:.62em;height:.62em;margin-right:.45em;
border:2px solid currentColor;border-radius:50%;background:currentColor}}
.pays{{color:var(--pays)}}.costs{{color:var(--costs)}}.same{{color:var(--same)}}
.open{{color:var(--open)}}.none{{color:var(--none)}}
.tag.costs::before{{border-radius:0}}
.tag.same::before{{border-radius:0;transform:rotate(45deg) scale(.85)}}
.tag.open::before{{background:none}}
.tag.none::before{{border-radius:0;background:none}}
.facts li.costs{{color:var(--ink)}}
.missing{{color:var(--none);font-style:italic}}
footer{{color:var(--grey);font-size:.88rem;padding-bottom:48px;overflow-wrap:anywhere}}
@media (max-width:720px){{
main,header,footer{{padding:0 14px}}
header{{padding-top:24px}}
h1{{font-size:1.55rem}}
.verdict{{font-size:1.12rem}}
section{{padding:16px 14px;border-radius:10px;margin:14px 0}}
figure .wide{{display:none}}
figure .narrow{{display:block;max-width:460px}}
.scroll{{overflow:visible}}
table,tbody,tr,td,tbody th,caption{{display:block;width:100%}}
thead{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
tr{{padding:10px 0;border-bottom:1px solid var(--faint)}}
td,tbody th{{border:0;padding:2px 0;min-width:0}}
tbody th{{font-weight:600}}
td{{display:grid;grid-template-columns:minmax(7.5em,38%) 1fr;gap:10px}}
td>span{{min-width:0;overflow-wrap:anywhere}}
td::before{{content:attr(data-label);color:var(--grey)}}
}}
@media print{{
body{{background:#fff;font-size:10.5pt}}
main,header,footer{{max-width:none;padding:0}}
section{{border:0;padding:0;margin:18px 0}}
nav{{display:none}}
.scroll{{overflow:visible}}
figure,tr{{break-inside:avoid}}
h2,h3,caption,summary{{break-after:avoid}}
details::details-content{{content-visibility:visible;display:block}}
a{{color:inherit;text-decoration:none}}
}}
"""
