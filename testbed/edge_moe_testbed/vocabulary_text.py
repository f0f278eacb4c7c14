# SPDX-License-Identifier: GPL-3.0-or-later
"""The text that the vocabulary of random test models is trained on: our own sentences, English and Korean."""

TEXT = """
A small board stands on the shelf and answers every question that the workshop asks of it during the night shift.
The harbour wakes slowly; gulls argue over yesterday's bread while the first ferry warms its engine by the old pier.
Write a short letter to a neighbour whose garden wall was damaged by the storm and offer to help with the repair.
Explain to a child why the moon seems to follow the car when the family drives home along the dark country road.
Which three tools should a beginner buy first when they want to build a wooden table for the kitchen, and why these?
Describe how a river changes from its source in the mountains to the wide flat delta where it meets the open sea.
The teacher counted the chairs twice, then asked the class how many visitors could sit if each bench held four.
Compare the taste of bread baked in a stone oven with bread from a modern factory, and name what causes the difference.
Give me a plan for a quiet weekend in a city where it rains all day and every museum is closed for the holiday.
Memory is read from the drive in large pieces, and the pieces that were used often stay close to the processor.
Tell the story of a clockmaker who repairs a tower clock and finds a message inside that was meant for somebody else.
Summarise what happens to a cup of hot tea that is left on the window sill of a cold room for one hour.
밤새 켜져 있던 작은 보드가 아침이 되자 조용히 결과를 내놓았고 우리는 그 숫자를 천천히 읽어 보았다.
비가 그친 뒤 골목길에서 들려오는 아이들의 웃음소리를 짧은 글로 써 주세요.
처음으로 자전거를 배우는 동생에게 넘어지지 않는 방법을 친절하게 설명해 주세요.
바다와 산 가운데 여름 휴가를 보내기에 더 좋은 곳은 어디이며 그 까닭은 무엇인가요?
오래된 시계를 고치는 할아버지의 하루를 이야기로 만들어 주세요.
김치를 담글 때 소금에 절이는 까닭을 초등학생도 알 수 있게 설명해 주세요.
시장에서 산 사과 열두 개를 네 사람이 똑같이 나누면 한 사람은 몇 개를 받게 되나요?
겨울 아침 창문에 서리가 생기는 과정을 물과 온도를 가지고 차례대로 말해 주세요.
도서관에서 책을 빌리고 돌려주는 순서를 처음 온 사람에게 알려 주는 안내문을 써 주세요.
기차를 놓친 사람이 역에서 다음 열차를 기다리며 떠올린 생각을 적어 주세요.
강물이 산에서 시작하여 넓은 들을 지나 바다에 이르기까지의 모습을 그려 주세요.
우리 마을 느티나무 아래에서 열리는 작은 음악회에 이웃을 초대하는 편지를 써 주세요.
"""
