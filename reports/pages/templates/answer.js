// The first screen: four choices, and the sentence of the combination. The choice is in the address.
(async () => {
  "use strict";
  const form = document.getElementById("choices");
  const AXES = ["name", "T", "dtype", "pass"]; // each offers what there is under the choices before it
  const lists = AXES.map((axis) => form.elements[axis]);
  const missing = document.getElementById("missing");
  const all = await page.data("answers");
  const kinds = new Map(all.map((choice) => [choice.name, choice.kind]));
  const lengths = new Map(all.map((choice) => [choice.T, choice.length]));
  const unique = (values) => [...new Set(values)];

  function element(name, text, className) {
    const node = document.createElement(name);
    node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  function option(axis, value) {
    const node = element("option", axis === "T" ? lengths.get(value) : value);
    node.value = value;
    return node;
  }

  function offer(list, axis, values) {
    const groups = axis === "name" ? unique(values.map((value) => kinds.get(value))) : [];
    if (groups.length < 2) {
      list.replaceChildren(...values.map((value) => option(axis, value)));
      return;
    }
    list.replaceChildren(...groups.map((kind) => {
      const group = document.createElement("optgroup");
      group.label = kind;
      group.append(...values.filter((value) => kinds.get(value) === kind).map((value) => option(axis, value)));
      return group;
    }));
  }

  // Select the combination that is nearest to the wanted values: each as wanted if it was measured there.
  function select(wanted) {
    let left = all;
    AXES.forEach((axis, i) => {
      const values = unique(left.map((choice) => choice[axis]));
      const value = values.includes(wanted[axis]) ? wanted[axis] : values[0];
      offer(lists[i], axis, values);
      lists[i].value = value;
      left = left.filter((choice) => choice[axis] === value);
    });
    return left[0];
  }

  function show(choice) {
    const [first, ...others] = choice.lines;
    const answer = document.getElementById("answer");
    answer.replaceChildren(`${choice.place}: `, element("b", first.winner), first.rest);
    document.getElementById("about").textContent = first.about;
    document.getElementById("others").replaceChildren(
      ...others.map((line) => element("li", `${line.winner}${line.rest} (${line.about})`)));
  }

  function chosen() {
    return Object.fromEntries(AXES.map((axis, i) => [axis, lists[i].value]));
  }

  function change() {
    const choice = select(chosen());
    missing.hidden = true;
    show(choice);
    history.replaceState(null, "", `#${new URLSearchParams(chosen())}`);
  }

  function follow() { // the address
    const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    if (!("name" in wanted)) return;
    show(select(wanted));
    const absent = AXES.filter((axis, i) => axis in wanted && wanted[axis] !== lists[i].value);
    missing.hidden = !absent.length;
    missing.textContent = `Not measured here: ${absent.map((axis) => `${axis} ${wanted[axis]}`).join(", ")}. Shown instead:`;
  }

  select(chosen());
  lists.forEach((list) => {
    list.disabled = false;
    list.addEventListener("change", change);
  });
  addEventListener("hashchange", follow);
  follow();
})();

// The box that finds rows of the table of winners.
(() => {
  "use strict";
  const box = document.querySelector("[data-find]");
  const block = box.closest(".block");
  const rows = [...block.querySelectorAll("tbody tr")];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase());
  box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = texts.map((text) => wanted.every((word) => text.includes(word)));
    rows.forEach((row, i) => { row.hidden = !fits[i]; });
    const count = fits.filter(Boolean).length;
    block.querySelector("output").textContent = count === rows.length ? `${count} rows` : `${count} of ${rows.length} rows`;
  });
})();
